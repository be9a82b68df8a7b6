"""One reward at its place: an item of ``reward:`` or ``eval_reward:``."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr, model_validator
from typing_extensions import Self

from verl_core.config.condition import parse_condition
from verl_core.config.mount_keys import (
    BreakerConfig,
    CacheConfig,
    DefaultScore,
    HostConfig,
    MountKeys,
    Threshold,
)
from verl_core.config.mount_rules import findings_of
from verl_core.config.names import mount_name
from verl_core.config.problems import Finding, refuse
from verl_core.config.secrets import longest_first, marked, texts_at, texts_named
from verl_core.config.tree import YamlPath
from verl_core.config.weight import WeightSchedule

__all__ = [
    "BreakerConfig",
    "CacheConfig",
    "DefaultScore",
    "HostConfig",
    "MountConfig",
    "Threshold",
]


class MountConfig(MountKeys):
    """A reward provider at its place in a run."""

    _secret_paths: tuple[YamlPath, ...] = PrivateAttr(default=())

    @property
    def depends_on(self) -> frozenset[str]:
        """The mounts that must have scored before it."""
        texts = (self.when, None if self.only_if == "open" else self.only_if)
        named = (parse_condition(text).names for text in texts if text is not None)
        return frozenset(self.after).union(*named)

    @property
    def secret_paths(self) -> tuple[YamlPath, ...]:
        """Where secrets stand in `init_kwargs`; known once its plugin's config was read."""
        return self._secret_paths

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that may be shown nowhere."""
        written = texts_at(self.init_kwargs, self._secret_paths)
        return longest_first((*written, *texts_named(self.init_kwargs)))

    def hide(self, paths: tuple[YamlPath, ...]) -> None:
        """Note where secrets stand in `init_kwargs`."""
        self._secret_paths = paths

    def shown_kwargs(self) -> dict[str, Any]:
        """`init_kwargs` with a mark in the place of every secret."""
        return marked(self.init_kwargs, self._secret_paths)

    def setting(self) -> float | dict[str, Any]:
        """Its weight in the form that YAML, JSON and `parse_schedule` know."""
        return self.weight.as_dict() if isinstance(self.weight, WeightSchedule) else self.weight

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Fill in name and type, each from the other."""
        if not isinstance(data, dict):
            return data
        name = mount_name(data.get("name"), data.get("type"), data.get("node_class"))
        if name is None:
            has_form = all(isinstance(data.get(key, ""), str) for key in ("name", "type"))
            if has_form and data.get("type") != "custom":
                names = [
                    k for k, v in data.items() if isinstance(v, dict) and k not in cls.model_fields
                ]
                hint = f"a list of mounts: - {{type: {names[0]}, plugin: …}}" if names else ""
                said = "a mount needs type: (its name, and the key of its weight)"
                refuse([Finding((), said, hint)])
            elif has_form:
                refuse([Finding((), "type: custom needs node_class: module.Class")])
            return {"name": "", "type": "", **data}
        return {"type": name, **data, "name": name}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(findings_of(self))
        return self
