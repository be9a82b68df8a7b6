"""verl-reward inside verl 0.7.1 to 0.9.1: a reward manager for its reward loop.

In verl's config::

    reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://verl_core.integrations.verl
    reward.reward_manager.name=VerlRewardManager
    +reward.reward_kwargs.verl_reward.config=/path/of/run.yaml

or, with verl >= 0.9.0, which imports this module through the entry-point group ``verl.plugins``,
``reward.reward_manager.name=verl_reward`` in place of the first three.

``docs/peers.md`` says what verl can carry and what it cannot.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import verl
from packaging.version import Version
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from verl_core.config.places import located
from verl_core.config.run import RunConfig
from verl_core.control.client import URL_VARIABLE
from verl_core.integrations.fitting import say
from verl_core.integrations.micro_batches import MicroBatches
from verl_core.integrations.verl_rows import Row, RowReader
from verl_core.integrations.verl_rules import TRAINER, carried, check_engine
from verl_core.integrations.verl_settings import (
    SETTINGS,
    Settings,
    load,
    read_settings,
    refuse_rivals,
    response_limit,
)
from verl_core.integrations.verl_weights import (
    ControlPlaneWeights,
    EngineWeights,
    Leases,
    session,
)
from verl_core.plugins import PluginRegistry
from verl_core.rewards import Lease, RewardEngine, RewardTable
from verl_core.rewards.statuses import OK
from verl_reward_sdk.errors import ConfigError, RewardError

logger = logging.getLogger(__name__)

#: Rows that are scored together at most.
_ROWS = 256
#: Micro-batches under way at once: one, for which others are collected meanwhile, unless a mount
#: spends its time waiting for somebody else.
_CALLS, _ASYNC_CALLS = 1, 16
#: What stands for a score that is not there. verl >= 0.9.1 leaves None out of its means.
_NOTHING = None if Version(verl.__version__) >= Version("0.9.1") else math.nan

#: As verl's `RewardLoopManager` calls its actors.
_LATER_WORKER = re.compile(r"reward_loop_worker_[1-9][0-9]*")

Answer = dict[str, Any]


@register("verl_reward")
class VerlRewardManager(RewardManagerBase):  # type: ignore[misc]  # verl is not typed
    """Scores verl's rows with the mounts of a config.

    Rows that are there at the same time are scored together. A row that has no reward (a provider
    failed or abstained, a gate had no answer) raises `RewardError`, which fails its prompt group.

    Raises:
        ConfigError: the config, or verl's own, asks for what cannot be carried or used; each
            problem is named with its place.
        ProviderError: a provider cannot be loaded.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        refuse_rivals(config)
        settings = read_settings(config)
        cfg = load(settings)
        with _located(cfg):
            self.engine, notes = _engine(cfg, settings)
        weakref.finalize(self, self.engine.close)
        with _located(cfg):
            self._leases = _leases(self.engine)
            self.engine.setup()
        if _is_first_worker():
            say(TRAINER, notes)
        self._scheduled = [mount.name for mount in cfg.reward if isinstance(mount.setting(), dict)]
        self._reader = RowReader(tokenizer, self.engine.reads, response_limit(config))
        waits = any(mount.execution == "async" for mount in self.engine.mounts.values())
        self._batches: MicroBatches[Row, Answer] = MicroBatches(
            self._score, rows=_ROWS, calls=_ASYNC_CALLS if waits else _CALLS
        )

    async def run_single(self, data: Any) -> Answer:
        """Score one trajectory: of several rows, the last.

        Args:
            data: a `DataProto`.

        Returns:
            ``{"reward_score": float, "reward_extra_info": {...}}``, with the same keys for every
            row: ``acc`` (the fused reward), ``reward/<mount>`` (raw scores), ``reward/<gate>/rate``
            (1.0 where it spoke), ``weights/revision``. What is not there is None (NaN before verl
            0.9.1).

        Raises:
            RewardError: the row has no reward.
            ConfigError: it lacks a column that a mount reads, or holds what cannot be compared.
        """
        return await self._batches.add(self._reader.read(data))

    # -- inside ------------------------------------------------------------------------------------

    async def _score(self, rows: Sequence[Row]) -> list[Answer | Exception]:
        """Each row's answer, or what it raises; rows of one lease in one call of the engine."""
        answers: list[Answer | Exception] = [RewardError("not scored")] * len(rows)
        parts: defaultdict[Any, list[int]] = defaultdict(list)
        leases: dict[Any, Lease] = {}
        for number, row in enumerate(rows):
            lease = self._leases.known(row.step, row.group)
            if lease is None:
                self._say_stepless(row)
                lease = await asyncio.to_thread(self._leases.take, row.step, row.group)
            key = (row.step, lease.revision, *lease.weights.values(), *lease.generations.values())
            leases[key] = lease
            parts[key].append(number)
        scored = await asyncio.gather(
            *(self._score_part([rows[n] for n in part], leases[key]) for key, part in parts.items())
        )
        for part, part_answers in zip(parts.values(), scored, strict=True):
            for number, answer in zip(part, part_answers, strict=True):
                answers[number] = answer
        return answers

    async def _score_part(self, rows: Sequence[Row], lease: Lease) -> list[Answer | Exception]:
        try:
            batch = await asyncio.to_thread(self._reader.batch, rows, lease.step)
            table = await self.engine.ascore(batch, lease=lease)
        except Exception as error:  # noqa: BLE001  (raised again, by the row's own caller)
            return [error] * len(rows)
        return answers_of(table)

    def _say_stepless(self, row: Row) -> None:
        if row.step is None and self._scheduled:
            logger.warning(
                "verl does not say which step a row belongs to (its V1 trainer does), so that"
                " schedules stay where they are: %s",
                ", ".join(self._scheduled),
            )
            self._scheduled = []


def answers_of(table: RewardTable) -> list[Answer | Exception]:
    """Each row of a table as `VerlRewardManager.run_single` gives it, or the error it raises."""
    info = {"acc": _values(table.fused.tolist())}
    for name, column in table.columns.items():
        if column.role == "gate":
            spoke = (column.words > 0).tolist()
            asked = (column.codes == OK).tolist()
            said = [float(s) if a else math.nan for s, a in zip(spoke, asked, strict=True)]
            info[f"reward/{name}/rate"] = _values(said)
        else:
            info[f"reward/{name}"] = _values(column.scores.tolist())
    info["weights/revision"] = [float(table.revision)] * len(table)
    names, rows = tuple(info), zip(*info.values(), strict=True)
    answers: list[Answer | Exception] = []
    fused, skip = table.fused.tolist(), table.skip.tolist()
    for number, values in enumerate(rows):
        if skip[number] or math.isnan(fused[number]):
            answers.append(_refused(table, number))
        else:
            extra = dict(zip(names, values, strict=True))
            answers.append({"reward_score": fused[number], "reward_extra_info": extra})
    return answers


def _values(values: list[float]) -> list[float | None]:
    return [_NOTHING if math.isnan(value) else value for value in values]


def _refused(table: RewardTable, row: int) -> RewardError:
    """Why a row has no reward that verl could carry."""
    if table.skip[row]:
        gates = [name for name, column in table.columns.items() if column.words[row] > 0]
        what = f"{', '.join(gates)} keeps it out of the update, which verl cannot"
    else:
        what = table.mask_reason[row] or "no reward"
    notes = [
        f"{name}: {column.notes[row]}"
        for name, column in table.columns.items()
        if row in column.notes and column.codes[row] != OK
    ]
    said = f" ({'; '.join(notes)})" if notes else ""
    return RewardError(
        f"the row {table.sample_ids[row]} has no reward: {what}{said}; its prompt group fails"
    )


# -- loading ---------------------------------------------------------------------------------------


def _engine(cfg: RunConfig, settings: Settings) -> tuple[RewardEngine, Sequence[str]]:
    """The engine, and what differs from the config's defaults."""
    kept = carried(cfg)
    registry = PluginRegistry()
    registry.load_extensions(cfg.plugins)
    if settings.weights is not None and os.environ.get(URL_VARIABLE):
        raise ConfigError(
            f"the weights come from a file or from {URL_VARIABLE}, not from both",
            path=".".join(SETTINGS) + ".weights",
        )
    engine = RewardEngine.from_config(
        kept.rewards,
        registry=registry,
        store_path=None if settings.weights is None else Path(settings.weights).expanduser(),
        store_shared=True,
    )
    try:
        check_engine(cfg, engine)
    except ConfigError:
        engine.close()
        raise
    return engine, kept.notes


def _leases(engine: RewardEngine) -> Leases:
    url = os.environ.get(URL_VARIABLE)
    return Leases(ControlPlaneWeights(engine, url, session()) if url else EngineWeights(engine))


def _is_first_worker() -> bool:
    """Whether this is the first of verl's reward workers, or none of them: what each would say is
    said once."""
    import ray

    name = ray.get_runtime_context().get_actor_name() if ray.is_initialized() else None
    return not name or not _LATER_WORKER.fullmatch(name)


@contextmanager
def _located(cfg: RunConfig) -> Iterator[None]:
    """Give an error that names a YAML path that path's file, line and column."""
    try:
        yield
    except ConfigError as error:
        if error.path is None or error.file is not None:
            raise
        raise located(cfg.root, error) from error


__all__ = ["Settings", "VerlRewardManager", "answers_of"]
