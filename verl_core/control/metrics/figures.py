"""What is counted of a run's scoring: by the mounts' answers, the scored tables, the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from verl_core.control.metrics.board import Board, Family
from verl_core.rewards.answer import Answer
from verl_core.rewards.failure_kinds import KINDS, failed_rows
from verl_core.rewards.statuses import ABSTAINED, NOT_APPLICABLE, OK, SEVERITY, STATUSES
from verl_reward_sdk.batch import RewardBatch

if TYPE_CHECKING:
    from verl_core.control.scoring.admission import Admission
    from verl_core.rewards.engine import RewardEngine
    from verl_core.rewards.table import RewardTable

OUTCOMES = ("rewarded", "masked", "blocked")
_WORDS = tuple(str(word) for word in SEVERITY[1:])


@dataclass(frozen=True)
class Share:
    """One worker's part of the numbers of all.

    Args:
        file: a descriptor that all workers have.
        row: this worker's, from 0.
        rows: how many workers there are.
    """

    file: int | None = None
    row: int = 0
    rows: int = 1


def scoring_families(mounts: Sequence[str], gates: Sequence[str]) -> list[Family]:
    """The families of an engine with these mounts, of which `gates` are gates."""

    def each(*others: Sequence[str], of: Sequence[str] = mounts) -> tuple[tuple[str, ...], ...]:
        if not others:
            return tuple((name,) for name in of)
        return tuple((name, value) for name in of for value in others[0])

    statuses = tuple(map(str, STATUSES))
    return [
        Family(
            "counter",
            "verl_reward_scores",
            "Rows of a mount by what became of them.",
            ("mount", "status"),
            each(statuses),
        ),
        Family(
            "counter",
            "verl_reward_failures",
            "Rows that a mount failed on, by why.",
            ("mount", "reason"),
            each(KINDS),
        ),
        Family(
            "histogram",
            "verl_reward_mount_seconds",
            "How long a mount's calls were executed.",
            ("mount",),
            each(),
        ),
        Family(
            "counter",
            "verl_reward_cache_rows",
            "Rows that were looked up in a mount's cache.",
            ("mount",),
            each(),
            shows_zero=False,
        ),
        Family(
            "counter",
            "verl_reward_cache_hits",
            "Rows that a mount's cache knew.",
            ("mount",),
            each(),
            shows_zero=False,
        ),
        Family(
            "counter",
            "verl_reward_gate_words",
            "Rows that a gate had something to say about.",
            ("mount", "word"),
            each(_WORDS, of=gates),
        ),
        Family(
            "counter",
            "verl_reward_rows",
            "Rows by what they got.",
            ("outcome",),
            tuple((outcome,) for outcome in OUTCOMES),
        ),
        Family(
            "gauge",
            "verl_reward_generation",
            "The generation of a mount's provider, in each worker.",
            ("mount",),
            each(),
            of_worker=True,
        ),
    ]


def queue_families() -> list[Family]:
    """The families of what is being scored over HTTP."""
    return [
        Family("gauge", "verl_reward_queue_requests", "Scoring requests under way."),
        Family("gauge", "verl_reward_queue_rows", "Rows under way, of these requests."),
        Family("counter", "verl_reward_queue_refused", "Scoring requests told to come again."),
    ]


def told_queue(board: Board) -> Callable[[Admission], None]:
    """What keeps the board's `queue_families` as an admission is."""
    requests, rows, refused = (
        board.at(f"verl_reward_queue_{name}") for name in ("requests", "rows", "refused")
    )
    seen = 0

    def tell(admission: Admission) -> None:
        nonlocal seen
        board.set(requests, admission.requests)
        board.set(rows, admission.rows)
        if admission.refused > seen:
            board.add([(refused, admission.refused - seen)])
            seen = admission.refused

    return tell


class Scored:
    """Writes what an engine does onto a board with `scoring_families`.

    Args:
        board: where.
        engine: whose answers and tables are counted from now on.
    """

    def __init__(self, board: Board, engine: RewardEngine) -> None:
        self._board = board
        at = board.at
        self._status = {
            name: [at("verl_reward_scores", name, str(s)) for s in STATUSES]
            for name in engine.mounts
        }
        self._reason = {
            (name, kind): at("verl_reward_failures", name, kind)
            for name in engine.mounts
            for kind in KINDS
        }
        self._seconds = {name: at("verl_reward_mount_seconds", name) for name in engine.mounts}
        self._cache = {
            name: (at("verl_reward_cache_rows", name), at("verl_reward_cache_hits", name))
            for name in engine.mounts
        }
        self._generation = {name: at("verl_reward_generation", name) for name in engine.mounts}
        self._words = {
            name: [at("verl_reward_gate_words", name, word) for word in _WORDS]
            for name, mount in engine.mounts.items()
            if mount.role == "gate"
        }
        self._outcome = [at("verl_reward_rows", outcome) for outcome in OUTCOMES]
        for name, mount in engine.mounts.items():
            board.set(self._generation[name], float(mount.generation))
        engine.subscribe_answers(self._answered)
        engine.subscribe(self._scored)
        engine.subscribe_generations(self._replaced)

    def _replaced(self, name: str, before: Any, after: Any) -> None:
        self._board.set(self._generation[name], float(after["number"]))

    def _answered(self, name: str, answer: Answer) -> None:
        places = self._status[name]
        rows = len(answer.codes)
        if not answer.codes.any():  # all ok, as nearly always
            counts: list[tuple[int, float]] = [(places[OK], rows)]
        else:
            kind, failed = failed_rows(answer)
            abstained = int(np.count_nonzero(answer.codes == ABSTAINED))
            counts = [
                (places[OK], rows - failed - abstained),
                (places[ABSTAINED], abstained),
                (places[-1], failed),
            ]
            if failed:
                counts.append((self._reason[name, kind], failed))
        if answer.hits is not None:
            looked_up, hits = self._cache[name]
            counts += [(looked_up, answer.asked), (hits, answer.hits)]
        self._board.add(counts)
        if answer.seconds > 0.0:  # something was asked, and began
            self._board.see(self._seconds[name], answer.seconds)

    def _scored(self, batch: RewardBatch, table: RewardTable) -> None:
        blocked = int(np.count_nonzero(table.blocked))
        masked = int(np.count_nonzero(table.masked & ~table.blocked))
        got = (len(table) - masked - blocked, masked, blocked)
        counts: list[tuple[int, float]] = list(zip(self._outcome, got, strict=True))
        for name, column in table.columns.items():
            if column.codes.any():
                skipped = int(np.count_nonzero(column.codes == NOT_APPLICABLE))
                counts.append((self._status[name][NOT_APPLICABLE], skipped))
            if name in self._words and column.words.any():
                said = np.bincount(column.words, minlength=len(_WORDS) + 1).tolist()
                counts += zip(self._words[name], said[1:], strict=True)
        self._board.add(counts)
