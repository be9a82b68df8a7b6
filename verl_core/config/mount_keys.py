"""The keys of one item of ``reward:``, each by itself."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from typing_extensions import Self

from verl_core.config.base import Items, LocalPath, Model, OrForm, Pair
from verl_core.config.condition import ConditionError, parse_condition
from verl_core.config.limits import MAX_SCORE, MAX_SECONDS
from verl_core.config.names import composed
from verl_core.config.problems import Finding, refuse
from verl_core.config.weight import Weight

Seconds = Annotated[float, Field(gt=0.0, le=MAX_SECONDS)]


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

    default: float = Field(ge=-MAX_SCORE, le=MAX_SCORE)
    """The score."""


class BreakerConfig(Model):
    """``breaker:``: no more calls for a while after so many failed ones in a row."""

    failures: int = Field(default=5, ge=1)
    """So many in a row open it."""
    reset: Seconds = 30.0
    """Seconds until one call is let through to try."""


class HostConfig(Model):
    """``host:``: a limit that all mounts and processes of this machine share which name it."""

    name: Annotated[str, Field(min_length=1)]
    """The host, as in ``api.example.com``; any text that they agree on."""
    concurrency: int = Field(default=16, ge=1, le=4096)
    """The most calls at once, of all of them together."""


class CacheConfig(Model):
    """``cache:``: what was said about a row is not asked again."""

    rows: int = Field(default=100_000, ge=1)
    """So many rows are kept; the longest unused ones go first."""
    path: LocalPath | None = None
    """A file that outlives the run and may be shared; without it they are kept in memory."""


def _is_mapping(value: Any) -> str:
    return "mapping" if isinstance(value, dict | Model) else "word"


OnError = Annotated[
    Annotated[Literal["mask", "abstain", "raise"], Tag("word")]
    | Annotated[DefaultScore, Tag("mapping")],
    Discriminator(_is_mapping),
    OrForm("{default: x}"),
]


def _on_scores(text: str) -> str:
    """A condition on scores, composed. One that cannot be read is told of with the others."""
    text = composed(text)
    with contextlib.suppress(ConditionError):
        if parse_condition(text).booleans:
            hint = "a score is a number: write 1 for true and 0 for false"
            refuse([Finding((), f"{text!r} would never hold for a score", hint)])
    return text


Name = Annotated[str, AfterValidator(composed)]
#: Names mounts, and compares their scores with numbers; no text in it could be meant as it is.
OnMounts = Annotated[str, AfterValidator(_on_scores)]


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
    """0 to a million, or a schedule: ``{linear: {from, to, steps}}``, ``{cosine: …}`` alike, or
    ``{step: {from, at}}``."""

    penalty: float | None = Field(default=None, lt=0.0, ge=-MAX_SCORE)
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
    """More failed rows than this share of those it was asked about, and the step raises."""
    normalize: Literal["none", "group", "batch", "running"] = "none"
    """Normalisation before the weight: within a row's group, the step, or all steps so far."""

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

    execution: Literal["inline", "async", "thread", "process"] | None = None
    """Where it runs; by default as the provider says."""
    workers: int | None = Field(default=None, ge=1, le=1024)
    """The most calls at once, and under `process` the worker processes. By default 1 for `process`
    and for a provider that is not thread safe, else 16 for `thread` and 64 for `async`."""
    timeout: Seconds = 60.0
    """Seconds from the start of a call."""
    queue_timeout: Seconds | None = None
    """Seconds that a call may wait before it; by default `timeout`."""
    max_abandoned: int = Field(default=3, ge=1)
    """So many calls left behind at their deadline, and the mount fails at once."""
    retries: int = Field(default=0, ge=0)
    """How often a call that failed by what may pass (an `OSError`, a timeout of its own, a
    `ProviderError` with `retryable`) is tried again, inside `timeout`."""
    retry_wait: Seconds = 0.5
    """Seconds before the first retry; doubled each time up to 10, and varied at random."""
    breaker: BreakerConfig | None = None
    """After so many failed calls in a row none for a while: ``{failures: 5, reset: 30}``."""
    host: HostConfig | None = None
    """A limit shared by all that name the same host: ``{name: api.example.com, concurrency: 16}``.
    """
    cache: CacheConfig | None = None
    """Scores given before are not asked for again: ``{rows: 100000, path: scores.db}``."""
    scale: float = 1.0
    """The raw score is multiplied by it; not 0."""
    clip: Pair[float] | None = None
    """``[low, high]``, after `scale`."""
    watch: Items[str] = ()
    """Further files and folders that belong to it: a change of one makes a new generation."""
    reload: Literal["blocking", "background"] = "blocking"
    """Where its files changed: `blocking` has the next step wait for the new generation,
    `background` scores with the old one until the new one is proved."""
    reload_wait: Seconds = 30.0
    """Seconds that a step waits under `blocking`; then the old generation scores it."""
    safe_globals: Items[str] = ()
    """``module.Class`` names that its pickled files may hold."""

    @property
    def is_gate(self) -> bool:
        """Whether it stands over the sum."""
        return self.role == "gate"
