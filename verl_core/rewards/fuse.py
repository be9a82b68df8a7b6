"""From the answers of all mounts to a RewardTable.

The order is always the same: raw score, scale and clip, normalize, weight, policy, gates. The sum
runs over mounts in config order and in float64, so that the same batch, weights and generations
give the same bits wherever the providers ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from verl_core.rewards.answer import Answer
from verl_core.rewards.failures import LastingRewardError, is_lasting
from verl_core.rewards.fuser import Fuser
from verl_core.rewards.gates import Ruled, Verdict, judge, rule
from verl_core.rewards.group_statistics import MAX_SQUARED, Grouping
from verl_core.rewards.lease import Lease
from verl_core.rewards.missing import Filled, fill
from verl_core.rewards.mount import Mount
from verl_core.rewards.statuses import ABSTAINED, FAILED, GATE_FAILED, SKIP
from verl_core.rewards.table import MountColumn, RewardTable
from verl_core.rewards.tokens import TokenPart
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError
from verl_reward_sdk.protocols import Bools, Floats, Fused

NO_REWARD = "no reward"

Asked = tuple[Mount, Answer]


def is_step(batch: RewardBatch) -> bool:
    """Whether failures are bounded in `batch`: it trains, or it belongs to a run's step."""
    return batch.training or batch.step is not None


def groups_of(batch: RewardBatch) -> npt.NDArray[np.int64]:
    """(B,) int64: rows of one prompt share a number; without group ids each row is a group."""
    if batch.group_ids is None:
        return np.arange(len(batch))
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(g, len(numbers)) for g in batch.group_ids], dtype=np.int64)


def fuse_table(
    batch: RewardBatch, lease: Lease, columns: Sequence[Asked], fuser: Fuser
) -> RewardTable:
    """Fuse one batch. Nothing is learnt from it: that is `Fuser.step_end`.

    Args:
        columns: every mount with its answer, in config order.

    Raises:
        ContractError: the policy's answer has a wrong shape or is not finite, or a score is too
            large for ``normalize:``.
        ConfigError: the policy compares the rows of a group, and the batch has no groups.
        RewardError: the gates leave no live row to train on; it says which gates, and why at first.
    """
    n, groups = len(batch), groups_of(batch)
    if batch.group_ids is None and getattr(fuser.policy, "needs_groups", False):
        raise ConfigError(
            f"{fuser.policy.name} compares the responses of a prompt, and this batch has no groups",
            path="fusion.policy",
            hint="give RewardBatch group_ids",
        )
    rewards = [(mount, answer) for mount, answer in columns if mount.role == "reward"]
    gates = {m.name: (m.config, answer) for m, answer in columns if m.role == "gate"}
    weights = np.array([lease.weights[mount.name] for mount, _ in rewards], dtype=np.float64)
    filled = [
        fill(answer, mount.config, groups, observed=weight == 0.0)
        for (mount, answer), weight in zip(rewards, weights.tolist(), strict=True)
    ]
    verdict = judge(gates, n)
    unscored = _unscored(rewards, filled, weights, n)
    unknown = unscored.astype(bool)
    dead = unknown
    if gates:
        dead = (unknown | verdict.shut) & ~verdict.vetoed
    _normalize(fuser, rewards, filled, weights, groups, ~dead & verdict.in_baseline)
    fused = _fused(fuser, filled, weights, groups, unknown | dead)
    ruled = rule(verdict, fused, unscored, training=batch.training)
    table = RewardTable(
        sample_ids=batch.sample_ids,
        group_ids=batch.group_ids,
        step=batch.step,
        training=batch.training,
        revision=lease.revision,
        weights=lease.weights,
        generations=lease.generations,
        additive=fuser.policy.additive,
        columns=_table_columns(columns, filled, ruled, verdict, lease),
        fused=ruled.values,
        masked=ruled.masked,
        skip=verdict.word == SKIP,
        in_baseline=~ruled.masked & ~ruled.blocked & verdict.in_baseline,
        blocked=ruled.blocked,
        gate_words=verdict.word,
        mask_reason=tuple(ruled.reason.tolist()),
        penalties=verdict.penalties,
        token_parts=_token_parts(rewards, filled, fuser.factors(weights)),
        figures=fuser.figures(),
    )
    if n and batch.training:  # elsewhere a row that a gate shuts is blocked, be it the only one
        _refuse_dead(table, verdict, columns)
    return table


def _unscored(
    rewards: Sequence[Asked], filled: Sequence[Filled], weights: Floats, n: int
) -> npt.NDArray[np.object_]:
    """(B,) object: why a row cannot have a fused reward, or None. The first reason stands."""
    reason: npt.NDArray[np.object_] = np.full(n, None, dtype=object)
    if all(column.whole for column in filled):
        return reason
    for (mount, answer), column in zip(rewards, filled, strict=True):
        if column.masks.any():
            for code, what in ((FAILED, "failed"), (ABSTAINED, "abstained")):
                fresh = column.masks & (answer.codes == code) & ~reason.astype(bool)
                reason[fresh] = f"{mount.name} {what}"
    # A mount of weight 0 is only observed: its score does not make a row a scored one, unless
    # (`allow_zero`) there is no other.
    observed = weights == 0.0
    counting = [
        column.counted
        for column, skip in zip(filled, observed.tolist(), strict=True)
        if not skip or observed.all()
    ]
    scored = np.logical_or.reduce(counting)
    if not scored.all():
        reason[~scored & ~reason.astype(bool)] = NO_REWARD
    return reason


def _normalize(
    fuser: Fuser,
    rewards: Sequence[Asked],
    filled: Sequence[Filled],
    weights: Floats,
    groups: npt.NDArray[np.int64],
    live: Bools,
) -> None:
    """Every column by its mount's ``normalize:``, in place; then what may only lower, lowers.

    Args:
        weights: (M,) float64. A mount of weight 0 is only observed and never raises: a score that
            is too large has no normalised one.
        live: (B,) bool, rows that may enter a mean.
    """
    if all(mount.config.normalize == "none" for mount, _ in rewards):
        for column in filled:
            column.hold()
        return
    grouping = Grouping(groups)
    for (mount, _), column, weight in zip(rewards, filled, weights.tolist(), strict=True):
        if mount.config.normalize != "none":
            large = column.present & (np.abs(column.values) > MAX_SQUARED)
            if weight == 0.0:
                column.leave_out(large)
            elif large.any():
                row = int(np.flatnonzero(large)[0])
                raise ContractError(
                    f"a score is too large for normalize: {mount.config.normalize}",
                    provider=mount.name,
                    row=row,
                    value=float(column.values[row]),
                    bound=f"at most {MAX_SQUARED:g} either way, after scale and clip",
                )
            column.values = fuser.normalize(
                mount.config, column.values, grouping, live, column.neutral
            )
        column.hold()


def _token_parts(
    rewards: Sequence[Asked], filled: Sequence[Filled], factors: Floats
) -> tuple[TokenPart, ...]:
    """The token scores of the rows whose own score is what the mount adds."""
    parts = []
    for (mount, answer), column, factor in zip(rewards, filled, factors.tolist(), strict=True):
        if answer.token_scores is not None:
            own = (answer.ok & column.present & ~column.unsure).tolist()
            rows = [row if ok else None for row, ok in zip(answer.token_scores, own, strict=True)]
            parts.append(TokenPart(rows, mount.config.scale * factor))
    return tuple(parts)


def _fused(
    fuser: Fuser,
    filled: Sequence[Filled],
    weights: Floats,
    groups: npt.NDArray[np.int64],
    out: Bools,
) -> Fused:
    """The policy's answer, checked.

    Args:
        out: (B,) bool, rows that are masked, or worth what a veto says: the policy sees nothing of
            them, so that nobody is compared with them.
    """
    policy = fuser.policy
    shape = (len(groups), len(filled))
    scores = np.empty(shape, order="F")  # a mount's column lies together
    present = np.empty(shape, dtype=bool, order="F")
    is_whole = not out.any()
    for mount, column in enumerate(filled):
        if is_whole and column.whole:
            present[:, mount], scores[:, mount] = True, column.values
            continue
        present[:, mount] = column.present & ~out
        scores[:, mount] = np.where(present[:, mount], column.values, np.nan)
    fused = policy.fuse(scores, present, weights, groups)
    name = f"fusion policy {policy.name}"
    for what, array, bound in (
        ("values", fused.values, shape[:1]),
        ("contributions", fused.contributions, shape),
    ):
        if np.shape(array) != bound:
            raise ContractError(
                f"{what} has a wrong shape", provider=name, value=np.shape(array), bound=bound
            )
    wrong = ~(np.abs(fused.values) <= MAX_SQUARED) & ~out  # NaN compares false
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ContractError(
            "the fused reward is not finite, or so large that a step's mean and spread are not",
            provider=name,
            row=row,
            value=float(fused.values[row]),
            bound=f"at most {MAX_SQUARED:g} either way, from the scores {scores[row].tolist()}",
        )
    return fused


def _table_columns(
    columns: Sequence[Asked],
    filled: Sequence[Filled],
    ruled: Ruled,
    verdict: Verdict,
    lease: Lease,
) -> dict[str, MountColumn]:
    table: dict[str, MountColumn] = {}
    rewards = iter(zip(filled, ruled.contributions.T, strict=True))
    nothing = np.full(len(ruled.values), np.nan)
    silent = np.zeros(len(ruled.values), dtype=np.int8)
    nobody = np.zeros(len(ruled.values), dtype=bool)
    for mount, answer in columns:
        if mount.role == "reward":
            column, contribution = next(rewards)
            normalised = (
                column.values if column.whole else np.where(column.present, column.values, np.nan)
            )
            neutral, unsure = column.neutral, column.unsure
        else:
            normalised, contribution = nothing, ruled.gate_contributions[mount.name]
            neutral = unsure = nobody
        table[mount.name] = MountColumn(
            name=mount.name,
            role=mount.role,
            scores=answer.scores,
            normalised=normalised,
            weight=lease.weights.get(mount.name, float("nan")),
            contribution=contribution,
            codes=answer.codes,
            words=verdict.words.get(mount.name, silent),
            notes=answer.reasons,
            extras=answer.extras,
            seconds=answer.seconds,
            neutral=neutral,
            unsure=unsure,
            hit_rate=_hit_rate(answer),
        )
    return table


def _hit_rate(answer: Answer) -> float | None:
    return answer.hits / answer.asked if answer.hits is not None and answer.asked else None


def _refuse_dead(table: RewardTable, verdict: Verdict, columns: Sequence[Asked]) -> None:
    """Raise `RewardError` where the gates leave nothing to train on: a `LastingRewardError` where
    every failure would come again."""
    dead = table.masked | table.skip
    by_gate = (table.masked & verdict.shut) | table.skip
    if not dead.all() or not by_gate.any():
        return
    counts = Counter(
        _told(table, verdict, row) if reason else "skipped"
        for row, reason in enumerate(table.mask_reason)
    )
    for name, column in table.columns.items():
        if column.role == "gate" and column.words.any():
            counts[f"{name} spoke"] = int(np.count_nonzero(column.words))
    said = ", ".join(f"{count} x {what}" for what, count in counts.most_common())
    step = "the batch" if table.step is None else f"step {table.step}"
    failing = [(mount, answer) for mount, answer in columns if answer.failed_share()[0]]
    lasting = bool(failing) and all(is_lasting(mount, answer) for mount, answer in failing)
    kind = LastingRewardError if lasting else RewardError
    raise kind(f"the gates leave no live row in {step}, of {len(table)}: {said}")


def _told(table: RewardTable, verdict: Verdict, row: int) -> str:
    """Why a row is masked; of one that a gate shut, which gate, and the gate's first reason."""
    reason, gate = str(table.mask_reason[row]), verdict.shut_by[row]
    if gate is None or not verdict.shut[row]:
        return reason
    code = FAILED if reason == GATE_FAILED else ABSTAINED
    column = table.columns[gate]
    notes = (column.notes.get(int(i)) for i in np.flatnonzero(column.codes == code))
    first = next(filter(None, notes), None)
    return f"{reason} ({gate}{f', at first: {first}' if first else ''})"
