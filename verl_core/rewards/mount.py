"""A mount: a provider at its place in a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from verl_core.config.condition import Condition
from verl_core.config.mount import MountConfig
from verl_core.config.secrets import without
from verl_core.rewards.answer import Answer
from verl_core.rewards.cache.mounted import MountCache
from verl_core.rewards.conditions import holds
from verl_core.rewards.execution import Call, Limits, Runner
from verl_core.rewards.learner import Learner
from verl_core.rewards.process_state import Culprit, kept, watch
from verl_core.rewards.raised import is_interrupt, told
from verl_core.rewards.reload.code import Code
from verl_core.rewards.reload.copies import Taken
from verl_core.rewards.reload.rebase import original
from verl_core.rewards.row_words import failed_rows
from verl_core.rewards.statuses import ABSTAINED, FAILED, OK, SEVERITY_CODES, Codes
from verl_core.rewards.tokens import TokenRow, checked_token_scores
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, VerlRewardError, did_you_mean
from verl_reward_sdk.protocols import Bools, Floats
from verl_reward_sdk.provider import RewardProvider
from verl_reward_sdk.result import RewardResult, plain_scores

logger = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]

_PROBE_ROWS = 4


@dataclass
class Counters:
    """What a mount did so far."""

    calls: int = 0
    rows: int = 0
    failures: int = 0
    seconds: float = 0.0
    last_error: str | None = None


class Record:
    """What the generations of one mount share.

    Attributes:
        counters: what it did so far.
        observer: told the mount's name and each answer, those of its cache included, in the thread
            that reads it: it must be quick, and must not raise. None: nobody is.
        state: ``new | ready | degraded | closed``, as the last call left it.
        probe: a few of the rows that it scored last, where somebody wants them; see `keep_rows`.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counters = Counters()
        self.observer: Callable[[str, Answer], None] | None = None
        self.state = "new"
        self.probe: RewardBatch | None = None
        self._probe_wanted = False
        self._probe_at = 0.0

    def began_anew(self) -> None:
        """Another generation serves: how the last call of the old one ended says nothing of it."""
        with self.lock:
            if self.state == "degraded":
                self.state = "ready"

    def want_rows(self) -> None:
        """Keep a few rows from now on, for the proof of the next generation."""
        self._probe_wanted = True

    def keep_rows(self, batch: RewardBatch) -> None:
        """`batch` was scored: its first rows are kept, once a second at most."""
        if not self._probe_wanted or not len(batch):
            return
        now = monotonic()
        if self.probe is None or now - self._probe_at >= 1.0:
            self.probe, self._probe_at = batch.take(range(min(_PROBE_ROWS, len(batch)))), now


class Mount:
    """A provider with its config, its runner and its record: one generation of it.

    Whatever may still call it holds it: a lease, a scoring. When nobody does any more and another
    generation is in its place, its provider is closed (`verl_core.rewards.reload.places`).

    Args:
        config: its item of the YAML.
        provider: the instance it begins with.
        runner: where that runs.
        source: what provides it, for people: the plugin's or the class's name.
        path: its YAML path.
        execution: where it runs, for people.
        score_range: inclusive bounds of the raw score.
        applies_to: condition on columns, or None.
        only_if: condition on scores of the mounts that it follows, or None.
        when: condition on scores of other mounts, or None.
        learner: keeps what its provider learns, where it does.
        cache: what it was asked before, or None.
        generation: its number, from 1.
        taken: the assets that it was loaded from, or None where it reads none.
        record: what it shares with the generation before it.
        code: the code that runs, where it is known.
    """

    def __init__(
        self,
        config: MountConfig,
        provider: RewardProvider[Any],
        runner: Runner,
        *,
        source: str,
        path: str,
        execution: str,
        reads: frozenset[str],
        score_range: tuple[float, float],
        applies_to: Condition | None = None,
        only_if: Condition | None = None,
        when: Condition | None = None,
        learner: Learner | None = None,
        cache: MountCache | None = None,
        generation: int = 1,
        taken: Taken | None = None,
        record: Record | None = None,
        code: Code | None = None,
    ) -> None:
        self.config = config
        self.name = config.name
        self.role = config.role
        self.provider = provider
        self.runner = runner
        self.source = source
        self.path = path
        self.execution = execution
        self.score_range = score_range
        self.applies_to = applies_to
        self.only_if = only_if
        self.when = when
        self.learner = learner
        self.cache = cache
        self.depends_on = config.depends_on
        self.generation = generation
        self.taken = taken
        self.code = code
        self.record = Record() if record is None else record
        self._who = self.name if self.name == source else f"{self.name} ({source})"
        self._secrets = config.secrets
        self._reads = reads | frozenset(config.reads)
        self._culprit = Culprit(f"mount {self.name!r} ({source})")
        self._ends: WeakKeyDictionary[Call, Callable[[], None]] = WeakKeyDictionary()

    @property
    def counters(self) -> Counters:
        """What the mount did so far, in all its generations."""
        return self.record.counters

    @property
    def content(self) -> str:
        """What this generation is made of, as 32 hex digits: its code and its files. Unlike its
        number, the same in every process."""
        code, files = self.code, {} if self.taken is None else self.taken.digests
        parts = [str(code or ""), None if code is None else code.digest]
        parts += [files[path] for path in sorted(files)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    @property
    def reads(self) -> frozenset[str]:
        """The columns it needs: its provider's, its own `reads`, and those of `applies_to`."""
        return self._reads if self.applies_to is None else self._reads | self.applies_to.names

    # -- life ------------------------------------------------------------------------------------

    @property
    def blocks(self) -> bool:
        """Whether `ask` and `read` may wait for a disk: a coroutine calls them in a thread."""
        return self.cache is not None and self.cache.blocks

    @property
    def room(self) -> int:
        """How many calls it is worth to give it at once: those that can run, and as many behind
        them, so that no worker waits for its next."""
        workers = self.runner.describe()["workers"]
        if self.config.host is not None and workers is not None:
            workers = min(workers, self.config.host.concurrency)
        return sys.maxsize if workers is None else 2 * workers

    def setup(self) -> None:
        """Load the provider. Raises whatever it raises."""
        if self.cache is not None:
            self.cache.open(self.taken)
        self.runner.setup()
        if self.generation == 1:
            self.record.state = "ready"

    def close(self) -> None:
        """Release the provider, and the mount with it."""
        self.runner.close()
        if self.cache is not None:
            self.cache.close()
        self.record.state = "closed"

    @property
    def state(self) -> str:
        """``new | ready | degraded | failed | closed``: degraded where the last call failed,
        failed where it refuses every further one."""
        if self.record.state in ("ready", "degraded") and self.runner.exhausted:
            return "failed"
        return self.record.state

    # -- scoring ---------------------------------------------------------------------------------

    @property
    def asks_all(self) -> bool:
        """Whether no condition keeps a row from it."""
        return (
            self.applies_to is None
            and self.only_if is None
            and self.when is None
            and self.config.only_if is None
        )

    def applicable(self, batch: RewardBatch) -> npt.NDArray[np.bool_]:
        """(B,) bool: the rows that `applies_to` lets in.

        Raises:
            ConfigError: a column is not in the batch, or a value in it cannot be compared.
        """
        for name in sorted(self.reads - batch.columns.keys()):
            raise ConfigError(
                f"the data have no column {name!r}, which the mount {self.name!r} reads",
                path=self.path,
                hint=did_you_mean(name, batch.columns),
            )
        if self.applies_to is None:
            return np.ones(len(batch), dtype=bool)
        path = f"{self.path}.applies_to"
        return holds(self.applies_to, batch.columns, len(batch), path=path)

    def ask(self, batch: RewardBatch, rows: Rows | None) -> Call:
        """Have the provider score the given rows (None: all) with the columns it may see; those
        that its cache knows are not asked again. The call may have ended already."""
        seen = batch.with_columns_only(self._reads)
        if rows is not None:
            seen = seen.take(rows.tolist())
        if self.cache is None:
            return self._submit(seen)
        split = self.cache.split(seen)
        asked = seen if not split.hits else seen.take(split.ask.tolist())
        call = self._submit(asked) if len(asked) or not len(seen) else self._answered(asked)
        call.split = split
        return call

    def _submit(self, batch: RewardBatch) -> Call:
        """Hand it to the runner; what its provider changes of this process is put back."""
        if self.execution == "process":  # which has its own
            return self.runner.submit(batch)
        end = watch.begin(self._culprit)
        inline = self.execution == "inline"
        try:
            with kept(self._culprit, of_thread=True) if inline else contextlib.nullcontext():
                call = self.runner.submit(batch)
        except BaseException:
            end()
            raise
        if call.done:
            end()
            return call
        self._ends[call] = end
        call.future.add_done_callback(lambda _: end())
        return call

    def _answered(self, nothing: RewardBatch) -> Call:
        """An ended call about no row."""
        call = Call(nothing, Limits(), self.runner)
        call.begin()
        call.succeed(())
        return call

    def read(self, call: Call, n: int, rows: Rows | None) -> Answer:
        """The ended `call` as a column of n rows; `rows` as they were asked."""
        answer = self.answer(call, rows)
        return answer if rows is None else _spread(answer, rows, n)

    def answer(self, call: Call, rows: Rows | None) -> Answer:
        """The ended `call` as a column of the rows that were asked.

        Args:
            rows: which they are, for messages; None: all there are.
        """
        # The future's own callback may come later than whoever waited for it.
        self._ends.pop(call, _nothing)()
        split = call.split
        if split is None:
            answer = self._fresh(call, rows)
            answer.asked = len(answer.codes)
        else:
            assert self.cache is not None  # who else split it
            place = split.ask if rows is None else rows[split.ask]
            fresh = self._fresh(call, place if split.hits else rows) if len(split.ask) else None
            answer = self.cache.joined(split, fresh)
            answer.asked, answer.hits = len(answer.codes), split.hits
        if self.record.observer is not None:
            self.record.observer(self.name, answer)
        return answer

    def _fresh(self, call: Call, rows: Rows | None) -> Answer:
        """What the provider answered to `call`, which was about `rows` of the step's batch."""
        asked = len(call.batch)
        error = call.future.exception()
        if error is None:
            try:
                answer = self.checked(call.future.result(), call.batch)
                self.record.keep_rows(call.batch)
            except ContractError as broken:
                error = broken
            except BaseException as broken:  # a boundary: an answer nobody can read
                if is_interrupt(broken):
                    raise
                error = ContractError(
                    f"the answer cannot be read ({told(broken)})",
                    provider=self._who,
                    value=type(call.future.result()).__name__,
                    bound="RewardResult or a sequence of float | None",
                )
        if error is not None:
            answer = _failed(self._placed(error, rows), asked)
        if self._secrets or self._folder is not None:
            answer.reasons = {row: self.shown(reason) for row, reason in answer.reasons.items()}
        answer.seconds = call.seconds
        self._record(answer, rows)
        return answer

    def shown(self, text: str) -> str:
        """`text` as people may read it: without secrets, and with the paths that they know."""
        return without(original(text, self._folder), self._secrets)

    @property
    def _folder(self) -> Path | None:
        return None if self.taken is None else self.taken.folder

    def _placed(self, error: BaseException, rows: Rows | None) -> BaseException:
        """A broken contract with the mount's full name, and the row's number in the whole batch."""
        if not isinstance(error, ContractError):
            return error
        if error.row is None and error.provider != self.name:
            return error
        placed = ContractError(
            error.message,
            provider=self._who if error.provider == self.name else error.provider,
            row=error.row if error.row is None or rows is None else int(rows[error.row]),
            value=error.value,
            bound=error.bound,
        )
        placed.__cause__ = error.__cause__
        return placed

    def checked(self, value: object, batch: RewardBatch) -> Answer:
        """What its provider answered about `batch`, held against the contract.

        Raises:
            ContractError: it breaks it.
        """
        if self.role == "reward":
            plain = plain_scores(value, len(batch), self.score_range)
            if plain is not None:
                return Answer(plain, np.zeros(len(plain), dtype=np.int8))
        result = RewardResult.of(value, provider=self._who)
        scores, scored = result.checked(
            provider=self._who, n=len(batch), score_range=self.score_range
        )
        codes = np.where(scored, OK, ABSTAINED).astype(np.int8)
        failures, reasons = result.told(provider=self._who, n=len(batch))
        for row, reason in failures.items():
            codes[row] = FAILED
            reasons[row] = reason
        extras = {name: np.array(col, dtype=np.float64) for name, col in result.extras.items()}
        tokens = self._tokens(result, scores, scored, batch)
        return Answer(scores, codes, self._words(result), reasons, extras, token_scores=tokens)

    def _tokens(
        self, result: RewardResult, scores: Floats, scored: Bools, batch: RewardBatch
    ) -> Sequence[TokenRow] | None:
        if result.token_scores is None:
            return None
        if not self.provider.token_scores:
            raise ContractError(
                "token_scores that its class does not declare",
                provider=self._who,
                value=f"{len(result.token_scores)} rows of them",
                bound="none, or token_scores = True in the class",
            )
        rows = checked_token_scores(
            result.token_scores,
            scores,
            scored,
            provider=self._who,
            responses=batch.responses,
            response_ids=batch.response_ids,
        )
        return rows if any(row is not None for row in rows) else None

    def _words(self, result: RewardResult) -> Codes | None:
        if self.role != "gate":
            return None
        if result.severity is not None:
            return np.array([SEVERITY_CODES[word] for word in result.severity], dtype=np.int8)
        if self.config.threshold is None:
            raise ContractError(
                "a gate without threshold: must give a severity",
                provider=self._who,
                value=None,
                bound="none | penalty | veto | skip, a row",
            )
        return None

    def _record(self, answer: Answer, rows: Rows | None) -> None:
        failed, asked = answer.failed_share()
        record = self.record
        with record.lock:
            counters = record.counters
            counters.calls += 1
            counters.rows += asked
            counters.failures += failed
            counters.seconds += answer.seconds
            news = failed and record.state != "degraded"
            if failed:
                counters.last_error = answer.first_reason()
            if record.state in ("ready", "degraded"):
                record.state = "degraded" if failed else "ready"
        if news:  # and not again for every batch: the table and the metrics carry each failure
            which = np.flatnonzero(answer.codes == FAILED).tolist()
            logger.warning(
                "mount %s: %s: %s",
                self.name,
                failed_rows(which, asked, None if rows is None else rows.tolist()),
                answer.first_reason(),
                # A traceback repeats the error's own words, where a secret may be.
                exc_info=None
                if self._secrets or isinstance(answer.error, VerlRewardError)
                else answer.error,
            )

    def describe(self, weight: float | None) -> dict[str, Any]:
        """What ``GET …/providers`` shows of it, JSON-ready."""
        with self.record.lock:
            counters = Counters(**vars(self.counters))
        return {
            "name": self.name,
            "plugin": self.source,
            "role": self.role,
            "weight": weight,
            "execution": self.execution,
            "state": self.state,
            "generation": self.generation,
            "last_error": counters.last_error,
            "calls": counters.calls,
            "rows": counters.rows,
            "failures": counters.failures,
            "seconds_mean": counters.seconds / counters.calls if counters.calls else 0.0,
            "breaker": None,
            **self.runner.describe(),
            "cache": None if self.cache is None else self.cache.describe(),
        }


def _nothing() -> None:
    """To do."""


def _failed(error: BaseException, n: int) -> Answer:
    known = isinstance(error, VerlRewardError)
    reason = str(error) if known else told(error)
    return Answer(
        np.full(n, np.nan),
        np.full(n, FAILED, dtype=np.int8),
        reasons=dict.fromkeys(range(n), reason),
        error=error,
    )


def _spread(answer: Answer, rows: Rows, n: int) -> Answer:
    """An answer about `rows` as one about all n rows."""
    whole = Answer.unasked(n)
    whole.scores[rows] = answer.scores
    whole.codes[rows] = answer.codes
    if answer.words is not None:
        whole.words = np.zeros(n, dtype=np.int8)
        whole.words[rows] = answer.words
    whole.reasons = {int(rows[row]): reason for row, reason in answer.reasons.items()}
    whole.extras = {name: _over(values, rows, n) for name, values in answer.extras.items()}
    if answer.token_scores is not None:
        tokens: list[TokenRow] = [None] * n
        for row, entry in zip(rows.tolist(), answer.token_scores, strict=True):
            tokens[row] = entry
        whole.token_scores = tokens
    whole.seconds, whole.error = answer.seconds, answer.error
    whole.asked, whole.hits = answer.asked, answer.hits
    return whole


def _over(values: Floats, rows: Rows, n: int) -> Floats:
    whole = np.full(n, np.nan)
    whole[rows] = values
    return whole
