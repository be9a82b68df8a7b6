"""Rows that mounts failed on, counted over a batch or over several, and the bounds on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verl_core.rewards.answer import Answer
from verl_core.rewards.mount import Mount
from verl_core.rewards.statuses import FAILED
from verl_reward_sdk.errors import ContractError, RewardError


class LastingRewardError(RewardError):
    """A `RewardError` that comes again when the same rows are scored again: every failure is a
    broken contract of a provider that answers the same to the same rows."""


def is_lasting(mount: Mount, answer: Answer) -> bool:
    """Whether the rows that failed would fail again: a provider that says it is `deterministic`
    broke its contract on each of them."""
    if not mount.provider.deterministic or not isinstance(answer.error, ContractError):
        return False
    # Of a step that was scored in slices `error` is that of one of them. The text tells of each.
    begins = f"{answer.error.provider}: "
    failed = (answer.codes == FAILED).nonzero()[0].tolist()
    return all(answer.reasons.get(row, "").startswith(begins) for row in failed)


@dataclass
class _Count:
    """What became of the rows that one mount was asked about."""

    mount: Mount
    failed: int = 0
    asked: int = 0
    reason: str = ""
    cause: BaseException | None = None
    lasting: bool = True


class Failures:
    """Counts the failed rows of each mount whose failures are bounded: of rewards that weigh
    something. `refuse` holds the counts against ``on_error: raise`` and ``max_error_rate``."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def add(
        self,
        mounts: Mapping[str, Mount],
        answers: Mapping[str, Answer],
        weights: Mapping[str, float],
        names: Iterable[str],
    ) -> None:
        """Count what the mounts of these `names` answered on one batch."""
        for name in names:
            mount, answer = mounts[name], answers[name]
            if mount.role == "gate" or weights[name] == 0:
                continue
            count = self._counts.setdefault(name, _Count(mount))
            failed, asked = answer.failed_share()
            if failed and not count.failed:
                count.reason = answer.first_reason()
            if failed:
                count.lasting = count.lasting and is_lasting(mount, answer)
            count.failed += failed
            count.asked += asked
            count.cause = count.cause or answer.error

    def refuse(self, of: str) -> None:
        """Raise where a mount failed on more rows than it may.

        Args:
            of: what the rows belong to, behind "the rewards": ``" of step 3"``, or nothing.

        Raises:
            RewardError: it names every such mount, with the first reason of each; a
                `LastingRewardError` where every failure that was counted is a lasting one.
        """
        broken: list[str] = []
        cause: BaseException | None = None
        for name, count in self._counts.items():
            config = count.mount.config
            strict = config.on_error == "raise"
            if not count.failed or not (
                strict or count.failed > config.max_error_rate * count.asked
            ):
                continue
            bound = "on_error: raise" if strict else f"max_error_rate {config.max_error_rate:g}"
            broken.append(
                f"{name}: {count.failed} of {count.asked} rows failed ({bound}): {count.reason}"
            )
            cause = cause or count.cause
        if broken:
            lasting = all(count.lasting for count in self._counts.values() if count.failed)
            kind = LastingRewardError if lasting else RewardError
            raise kind(f"the rewards{of} may not be used: " + "; ".join(broken)) from cause
