"""What OpenRLHF can carry of a config, and what it cannot.

OpenRLHF asks for the reward of one response at a time, tells neither a step nor a group, and has no
way to leave a row out: a sample without a reward ends its run. (Read in OpenRLHF 0.11.2.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_core.config.mount import MountConfig
from verl_core.config.places import located
from verl_core.config.problems import raise_all
from verl_core.config.rewards import RewardsConfig
from verl_core.config.run import RunConfig
from verl_core.config.weight import WeightSchedule
from verl_core.integrations.fitting import (
    asks,
    learns,
    needs_groups,
    refused,
    replaced,
    token_notes,
)
from verl_core.integrations.run_rules import Own, evaluation_refusal, run_refusals
from verl_core.rewards.engine import RewardEngine
from verl_reward_sdk.errors import ConfigError

TRAINER = "OpenRLHF"
#: Seconds that its HTTP client waits, written into its source.
DEADLINE = 180.0
_SPARE = 5.0  # of them for the way there and back

_ONE_ROW = "OpenRLHF asks for one response at a time, so that there is no group and no step"
_OWN = Own(
    TRAINER,
    gdpo="leave dataflow: out, and choose --algo.advantage.estimator",
    kl="--algo.kl.init_coef, without --algo.kl.use_loss",
)
_NO_WAY_OUT = "OpenRLHF needs a reward for every row: it has no way to leave one out"


def refuse_run(run: RunConfig) -> None:
    """Refuse what a run asks for by name beside the mounts that it trains by.

    Raises:
        ConfigError: all of it, each with its place.
    """
    hint = "leave it out; every mount's part is in the logs"
    evaluation = evaluation_refusal(run, TRAINER, hint)
    errors = [*run_refusals(run, _OWN), *filter(None, [evaluation])]
    raise_all([located(run.root, error) for error in errors])


def fit(
    rewards: RewardsConfig, engine: RewardEngine, *, http: bool
) -> tuple[RewardsConfig, list[str]]:
    """`rewards` as OpenRLHF can carry it, and what is to be said about that.

    Args:
        engine: built from `rewards`, not loaded: it knows the providers and the policy.
        http: whether it is asked over HTTP, where OpenRLHF waits `DEADLINE` and no longer.

    Raises:
        ConfigError: it asks by name for something that OpenRLHF cannot carry.
    """
    policy = engine.policy
    if needs_groups(policy):
        raise ConfigError(
            f"OpenRLHF cannot carry policy: {policy.name}: {_ONE_ROW}", path="fusion.policy"
        )
    if learns(policy):
        raise ConfigError(
            f"OpenRLHF cannot carry policy: {policy.name}: it learns at the end of each step, and"
            " nothing says when that is",
            path="fusion.policy",
        )
    for mount in rewards.mounts:
        _refuse(mount, engine)
    changes: dict[str, dict[str, Any]] = {m.name: _instead(m) for m in rewards.mounts}
    notes = [*_notes(rewards), *token_notes(engine, TRAINER)]
    if http:
        for name, wait in _waits(rewards.mounts).items():
            changes[name] = {**changes[name], "queue_timeout": wait}
    return replaced(rewards, changes), notes


def _refuse(mount: MountConfig, engine: RewardEngine) -> None:
    path = f"reward.{mount.name}"
    if engine.mounts[mount.name].provider.scope == "group":
        raise ConfigError(
            "OpenRLHF cannot carry a reward that compares the responses of a group"
            f" ({engine.mounts[mount.name].source}): {_ONE_ROW}",
            path=path,
        )
    if mount.normalize != "none":
        hint = "OpenRLHF's own estimators (--algo.advantage.estimator) normalise the sum"
        raise refused(mount, "normalize", TRAINER, _ONE_ROW, hint)
    if isinstance(mount.weight, WeightSchedule):
        raise ConfigError(
            "OpenRLHF cannot carry a schedule of weights: it tells a reward no step",
            path=f"{path}.weight",
            hint="give the weight as a number, and change it live",
        )
    if mount.is_gate:
        _refuse_skip(mount)
        return
    if asks(mount, "missing") and mount.missing != "zero":
        reason = _ONE_ROW if mount.missing == "neutral" else _NO_WAY_OUT
        raise refused(
            mount, "missing", TRAINER, reason, "write zero, or leave it out: then it raises"
        )
    if asks(mount, "on_error") and mount.on_error in ("mask", "abstain"):
        hint = "write raise or {default: x}, or leave it out: then it raises"
        raise refused(mount, "on_error", TRAINER, _NO_WAY_OUT, hint)


def _refuse_skip(mount: MountConfig) -> None:
    if mount.skip_update:
        raise refused(mount, "skip_update", TRAINER, _NO_WAY_OUT, "let the gate veto: leave it out")
    if asks(mount, "severity") and mount.severity == "skip":
        raise refused(mount, "severity", TRAINER, _NO_WAY_OUT, "write veto or penalty")


def _instead(mount: MountConfig) -> dict[str, Any]:
    """Other values for what nobody wrote: without a way to leave a row out, its call fails."""
    if mount.is_gate:
        return {}
    values: dict[str, Any] = {}
    if mount.missing == "neutral":
        values["missing"] = "mask"  # and a masked row is an error here
    if mount.on_error == "mask":
        values["on_error"] = "raise"
    return values


def _notes(rewards: RewardsConfig) -> Iterator[str]:
    summed = [mount for mount in rewards.mounts if not mount.is_gate]
    if any(mount.on_error == "mask" for mount in summed):
        yield "on_error: raise in place of mask: a row that cannot be scored fails its call"
    if any(mount.missing == "neutral" for mount in summed):
        yield (
            "an abstention fails its call, in place of missing: neutral (a row alone has no group"
            " whose mean it could take); missing: zero makes it a 0"
        )
    if any(mount.is_gate for mount in rewards.mounts):
        yield (
            "a gate that says skip fails its call: OpenRLHF trains on every row. One that fails or"
            " abstains does likewise, unless fail_open"
        )


def _waits(mounts: Sequence[MountConfig]) -> Mapping[str, float]:
    """Mount -> a `queue_timeout` with which an answer is there in time, where none is written.

    Raises:
        ConfigError: the written ones leave no time.
    """
    by_name = {mount.name: mount for mount in mounts}
    depth = {mount.name: _depth(mount, by_name) for mount in mounts}
    stages = max(depth.values(), default=1)
    share = (DEADLINE - _SPARE) / stages
    waits: dict[str, float] = {}
    for mount in mounts:
        queue = mount.timeout if mount.queue_timeout is None else mount.queue_timeout
        if mount.timeout + queue <= share:
            continue
        if asks(mount, "queue_timeout") or mount.timeout >= share:
            raise ConfigError(
                f"OpenRLHF waits {DEADLINE:g} s for an answer, and {mount.name} may take"
                f" {mount.timeout + queue:g} s (timeout and queue_timeout)"
                + (f" in one of {stages} stages" if stages > 1 else ""),
                path=f"reward.{mount.name}.timeout",
                hint=f"let both together be at most {share:g} s",
            )
        waits[mount.name] = share - mount.timeout
    return waits


def _depth(mount: MountConfig, by_name: Mapping[str, MountConfig]) -> int:
    """How many mounts have to answer one after the other, this one included."""
    return 1 + max((_depth(by_name[name], by_name) for name in mount.depends_on), default=0)
