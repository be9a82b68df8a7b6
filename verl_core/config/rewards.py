"""A set of mounts and how they become one reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from verl_core.config.base import Items, Model
from verl_core.config.condition import parse_condition
from verl_core.config.mount import MountConfig
from verl_core.config.problems import Finding, refuse
from verl_reward_sdk.errors import did_you_mean

#: The options of the project's own policies, so that a wrong key is told with all else that is
#: wrong. What they may be is said by each policy's `Config`.
POLICY_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "weighted_sum": (),
    "weighted_mean": (),
    "product": (),
    "min": (),
    "lexicographic": ("tolerance",),
    "constrained": ("bounds", "rate", "max_multiplier"),
}


class FusionConfig(Model):
    """How the mounts' scores become one reward. Further keys are options of the policy, which
    checks them when it is made: `verl_core.rewards.fusion`."""

    model_config = ConfigDict(extra="allow")

    policy: str = "weighted_sum"
    """The policy: weighted_sum, weighted_mean, product, min, lexicographic, constrained."""
    allow_zero: bool = False
    """Allow all weights to be 0 at once."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The keys that are the policy's own."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        known = POLICY_OPTIONS.get(self.policy)
        if known is not None:
            keys = [*FusionConfig.model_fields, *known]
            refuse(
                [
                    Finding((key,), self._unknown(key), did_you_mean(key, keys))
                    for key in self.options
                    if key not in known
                ]
            )
        return self

    def _unknown(self, key: str) -> str:
        owners = [policy for policy, options in POLICY_OPTIONS.items() if key in options]
        if owners:
            return f"{key}: is an option of {' and '.join(owners)}, and policy is {self.policy}"
        return "unknown key"


Mounts = Annotated[Items[MountConfig], Field(min_length=1)]


class RewardsConfig(Model):
    """All that `RewardEngine.from_config` needs."""

    mounts: Mounts
    """In config order, which is the order of every sum."""
    fusion: FusionConfig = FusionConfig()
    """How they are fused."""
    base_dir: Annotated[Path, Field(strict=False)] = Field(default_factory=Path.cwd)
    """What relative paths of plugins and `node_class` modules count from."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(mount_findings(self.mounts, self.fusion, ("mounts",)))
        return self


class EvalRewardConfig(Model):
    """``eval_reward:``. In YAML either a mount, a list of mounts, or ``{reward: …, fusion: …}``."""

    reward: Mounts
    """As the run's `reward`."""
    fusion: FusionConfig | None = None
    """As the run's `fusion`, which is also the default."""


def mount_findings(
    mounts: Sequence[MountConfig], fusion: FusionConfig, at: tuple[str | int, ...]
) -> list[Finding]:
    """What is wrong between the mounts of one set, which lies at `at`."""
    findings = [*_duplicates(mounts, at), *_unknown_names(mounts, at)]
    if not findings:
        findings = _circles(mounts, at)
    rewards = [mount for mount in mounts if not mount.is_gate]
    if rewards and not fusion.allow_zero and all(mount.weight == 0 for mount in rewards):
        hint = "give one a weight, or fusion: {allow_zero: true}"
        findings.append(Finding(at, "every weight is 0, so that no reward is left", hint))
    return findings


def _duplicates(mounts: Sequence[MountConfig], at: tuple[str | int, ...]) -> list[Finding]:
    first: dict[str, int] = {}
    findings = []
    for index, mount in enumerate(mounts):
        if first.setdefault(mount.name, index) != index:
            both = f"numbers {first[mount.name] + 1} and {index + 1}"
            message = f"two mounts are called {mount.name!r} ({both})"
            hint = f"call one of them something else, as in name: {mount.name}_{index + 1}"
            findings.append(Finding((*at, index), message, hint))
    return findings


def _unknown_names(mounts: Sequence[MountConfig], at: tuple[str | int, ...]) -> list[Finding]:
    by_name = {mount.name: mount for mount in mounts}
    findings = []
    for index, mount in enumerate(mounts):
        others = [name for name in by_name if name != mount.name]
        for key, names in _references(mount).items():
            findings += [
                Finding(
                    (*at, index, key),
                    "a mount cannot wait for itself"
                    if name == mount.name
                    else f"no mount is called {name!r}",
                    did_you_mean(name, others),
                )
                for name in names
                if name not in others
            ]
        findings += _cascade_findings(mount, by_name, (*at, index))
    return findings


def _references(mount: MountConfig) -> Mapping[str, Sequence[str]]:
    references: dict[str, Sequence[str]] = {"after": mount.after}
    if mount.when is not None:
        references["when"] = sorted(parse_condition(mount.when).names)
    return references


def _cascade_findings(
    mount: MountConfig, by_name: Mapping[str, MountConfig], at: tuple[str | int, ...]
) -> list[Finding]:
    if mount.only_if is None:
        return []
    if mount.only_if == "open":
        return [
            Finding(
                (*at, "only_if"),
                f"open is a gate's word, and {name!r} is no gate",
                "write a condition on its score",
            )
            for name in mount.after
            if name in by_name and not by_name[name].is_gate
        ]
    return [
        Finding((*at, "only_if"), f"{name!r} is not among after:", did_you_mean(name, mount.after))
        for name in sorted(parse_condition(mount.only_if).names)
        if name not in mount.after
    ]


def _circles(mounts: Sequence[MountConfig], at: tuple[str | int, ...]) -> list[Finding]:
    """The first circle of `after:`, `when:` and `only_if:`, with the way round it."""
    waits = {mount.name: sorted(mount.depends_on) for mount in mounts}
    done: set[str] = set()
    for index, mount in enumerate(mounts):
        way: list[str] = []
        stack = [(mount.name, iter(waits[mount.name]))]
        way.append(mount.name)
        while stack:
            name, rest = stack[-1]
            following = next((one for one in rest if one not in done), None)
            if following is None:
                done.add(name)
                stack.pop()
                way.pop()
            elif following in way:
                circle = [*way[way.index(following) :], following]
                text = " -> ".join(circle)
                return [Finding((*at, index), f"mounts wait for each other in a circle: {text}")]
            else:
                stack.append((following, iter(waits[following])))
                way.append(following)
    return []
