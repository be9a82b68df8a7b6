"""The keys of one item of ``reward:``, each by itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from typing_extensions import Self

from verl_core.config.base import Items, Model, Pair
from verl_core.config.names import composed
from verl_core.config.problems import Finding, refuse
from verl_core.config.weight import Weight


class Threshold(Model):
    """Where a gate's score speaks: exactly one of the two."""

    below: float | None = None
    """It speaks where the score is lower."""
    above: float | None = None
    """It speaks where the score is higher."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.below is None) == (self.above is None):
            refuse([Finding((), "give either below: or above:")])
        return self


class DefaultScore(Model):
    """``on_error: {default: x}``: what a failed row scores."""

    default: float
    """The score."""


def _is_mapping(value: Any) -> str:
    return "mapping" if isinstance(value, dict | Model) else "word"


OnError = Annotated[
    Annotated[Literal["mask", "abstain", "raise"], Tag("word")]
    | Annotated[DefaultScore, Tag("mapping")],
    Discriminator(_is_mapping),
]
Name = Annotated[str, AfterValidator(composed)]
#: Names mounts, and compares their scores with numbers; no text in it could be meant as it is.
OnMounts = Annotated[str, AfterValidator(composed)]
Seconds = Annotated[float, Field(gt=0.0)]


class MountKeys(Model):
    """The keys; what must hold between them is in `mount_rules`."""

    name: str
    """Its name, and the key of its weight. By default `type`; with ``type: custom`` the class in
    snake case without `Node`."""
    type: str
    """What it rewards (``tone``), or ``custom``. By default `name`."""
    plugin: str | None = None
    """The installed reward that scores, as ``verl-reward list`` names it."""
    node_class: str | None = None
    """Or ``module.Class``, a `RewardNode` in the config's folder or an installed package."""
    init_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The plugin's config, or the arguments of the node's constructor. Taken as written."""
    role: Literal["reward", "gate"] = "reward"
    """A reward is summed; a gate stands over the sum."""
    weight: Weight = 1.0
    """0 to a million, or a schedule: ``{linear: {from, to, steps}}`` or ``{step: {from, at}}``."""

    penalty: float | None = Field(default=None, lt=0.0)
    """Gate: < 0, in units of the fused reward. Required."""
    threshold: Threshold | None = None
    """Gate: speak by the score: ``{below: x}`` or ``{above: x}``."""
    severity: Literal["penalty", "veto", "skip"] = "veto"
    """Gate: what the threshold's word means."""
    skip_update: bool = False
    """Gate: a veto keeps the row out of the update as well."""
    in_baseline: bool = False
    """Gate: a skipped row enters its group's baseline all the same."""
    fail_open: bool = False
    """Gate: let a row through where the gate failed or abstained."""

    missing: Literal["neutral", "zero", "mask"] = "neutral"
    """What an abstention becomes."""
    on_error: OnError = "mask"
    """What a failed row becomes: mask, abstain, raise, ``{default: x}``."""
    max_error_rate: float = Field(default=0.5, ge=0.0, le=1.0)
    """More failed rows than this share of a step, and the step raises."""
    normalize: Literal["none"] = "none"
    """Normalisation before the weight."""

    reads: Items[str] = ()
    """Columns that it needs beyond those the plugin names."""
    applies_to: str | None = None
    """A condition on columns: ``data_source == "math"``."""
    when: OnMounts | None = None
    """A condition on other mounts: ``format >= 1``."""
    after: Items[Name] = ()
    """Mounts that are asked before it."""
    only_if: OnMounts | None = None
    """``open`` (the gates of `after` had nothing to say), or a condition on their scores."""

    execution: Literal["inline", "async", "thread"] | None = None
    """Where it runs; by default as the provider says."""
    timeout: Seconds = 60.0
    """Seconds from the start of a call."""
    queue_timeout: Seconds | None = None
    """Seconds that a call may wait before it; by default `timeout`."""
    max_abandoned: int = Field(default=3, ge=1)
    """So many calls left behind at their deadline, and the mount fails at once."""
    scale: float = 1.0
    """The raw score is multiplied by it; not 0."""
    clip: Pair[float] | None = None
    """``[low, high]``, after `scale`."""
    watch: Items[str] = ()
    """Further files that belong to it."""
    safe_globals: Items[str] = ()
    """``module.Class`` names that its pickled files may hold."""

    @property
    def is_gate(self) -> bool:
        """Whether it stands over the sum."""
        return self.role == "gate"
