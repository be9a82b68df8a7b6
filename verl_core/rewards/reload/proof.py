"""A candidate is tried before it serves: on a few rows, and against the labels of before."""

from __future__ import annotations

from typing import Any

from verl_core.rewards.execution import wait_any
from verl_core.rewards.execution.breaker import GuardedRunner
from verl_core.rewards.mount import Mount
from verl_core.rewards.statuses import FAILED
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ProviderError

_SYNTHETIC = (
    ("What does it cost?", "It costs 12 euros, and delivery is free."),
    ("Is it heavy?", "No."),
    ("Say something.", "Certainly! Here is something:\n\n1. one\n2. two"),
    ("Why?", ""),
)


def prove(mount: Mount, before: Mount) -> str:
    """Try `mount`, which is set up, as the next generation of `before`; on which rows, in words.

    Raises:
        ConfigError: its labels or the columns that it reads are others than those of `before`.
        ContractError: its answer breaks the contract: not finite, out of range, of another length.
        ProviderError: it fails on every row.
    """
    _same_columns(mount, before)
    _same_labels(mount, before)
    rows, whose = _rows(mount)
    if rows is None:
        return whose
    try_on(mount, rows)
    return whose


def try_on(mount: Mount, rows: RewardBatch) -> None:
    """Have it score `rows`, past its breaker and its counters. Raises as `prove`."""
    runner = mount.runner
    if isinstance(runner, GuardedRunner):
        runner = runner.inner
    call = runner.submit(rows)
    wait_any([call])
    error = call.future.exception()
    if error is not None:
        raise error
    answer = mount.checked(call.future.result(), rows)
    failed = answer.codes == FAILED
    if len(rows) and failed.all():
        raise ProviderError(f"it fails on every row of the proof: {answer.first_reason()}")


def own_rows(mount: Mount) -> RewardBatch | None:
    """The rows that its provider gives for the purpose; None where it gives none."""
    return mount.provider.probe()


def _rows(mount: Mount) -> tuple[RewardBatch | None, str]:
    own = own_rows(mount)
    if own is not None:
        return own, "its own probe rows"
    if mount.record.probe is not None and mount.config.plugin is not None:
        return mount.record.probe, "the rows that it scored last"
    if mount.reads or mount.config.plugin is None:
        return None, "no rows: made-up ones do not do for it, and it has scored nothing yet"
    n = len(_SYNTHETIC)
    made = RewardBatch(
        sample_ids=[f"proof-{i}" for i in range(n)],
        prompts=[prompt for prompt, _ in _SYNTHETIC],
        responses=[response for _, response in _SYNTHETIC],
        group_ids=["proof"] * n,
        training=False,
    )
    return made, "made-up rows"


def _same_columns(mount: Mount, before: Mount) -> None:
    more = sorted(mount.reads - before.reads)
    if more:
        raise ConfigError(
            f"it reads columns that it did not read before: {', '.join(more)}",
            hint="the data were checked when the run started: start it again",
        )


def _same_labels(mount: Mount, before: Mount) -> None:
    new, old = labels_of(mount), labels_of(before)
    if new != old:
        raise ConfigError(
            f"its labels are {_shown(new)}, and were {_shown(old)}",
            hint="scores would change their meaning; where that is meant, say so in the config and"
            " start the run again",
        )


def labels_of(mount: Mount) -> tuple[str, ...] | None:
    """The labels of a provider that is set up; None where it has none."""
    inner: Any = mount.runner
    while hasattr(inner, "inner"):  # behind a breaker, and held
        inner = inner.inner
    found = inner.labels if hasattr(inner, "labels") else mount.provider.labels
    return None if found is None else tuple(map(str, found))


def _shown(labels: tuple[str, ...] | None) -> str:
    return "none" if labels is None else "[" + ", ".join(labels) + "]"
