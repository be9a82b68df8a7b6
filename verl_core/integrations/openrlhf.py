"""The rewards of a config for OpenRLHF: as the function of its file, and over HTTP.

A file for ``--reward.remote_url my_reward.py``:

    from verl_core.integrations.openrlhf import reward_function

    reward_func = reward_function("run.yaml", tokenizer="HuggingFaceTB/SmolLM2-135M-Instruct")

or a server, for ``--reward.remote_url http://host:port/get_reward``: `openrlhf_server`.

OpenRLHF asks for one response at a time, tells no step and no group, takes one number a row, and
cannot leave a row out: a row that may not be trained on is an error. It logs that and goes on
without the row's reward, which ends the run. ``docs/peers.md`` has the table of what it carries.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl_core.config.rewards import RewardsConfig
from verl_core.config.run import RunConfig
from verl_core.integrations.fitting import RewardSets, read_rewards, refuse_nodes, say
from verl_core.integrations.openrlhf_rules import TRAINER, fit, refuse_run
from verl_core.integrations.openrlhf_texts import Texts
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.statuses import ABSTAINED
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError, did_you_mean

#: The column that labels are where nobody says otherwise.
LABEL = "ground_truth"
Source = str | Path | RunConfig | RewardsConfig
Score = Callable[[RewardBatch], Awaitable[RewardTable]]
Answer = dict[str, Any]
"""``{"rewards": [float], "scores": [float], "extra_logs": {name: [float]}}``, B each."""


def reward_function(
    source: Source,
    *,
    tokenizer: Any = None,
    label: str = LABEL,
    weights: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> OpenRlhfReward:
    """What OpenRLHF calls ``reward_func``. Nothing is loaded before its first call; it pickles.

    Args:
        source: a run's YAML (``model:`` and ``data:`` may be left out), or what was read from one.
        tokenizer: the policy's (a folder, a hub name, or a tokenizer). It cuts the prompt off where
            OpenRLHF's decoding changed it, and takes special tokens out of responses.
        label: the column that OpenRLHF's labels (``--data.label_key``) are. A label that is a
            mapping gives a column a key instead.
        weights: the ``weights.db`` whose live weights are used, as ``verl-reward serve --state``
            offers it over HTTP.
        overrides: ``key=value`` that win over the YAML's.

    Raises:
        ConfigError: the config cannot be used, or asks by name for something that OpenRLHF cannot
            carry; no mount reads `label`; `tokenizer` is a path where nothing is.
    """
    texts = Texts(tokenizer)
    rewards = fitted(read_rewards(source, overrides), label, http=False)
    return OpenRlhfReward(rewards, texts, label, None if weights is None else Path(weights))


def fitted(sets: RewardSets, label: str, *, http: bool) -> RewardsConfig:
    """The training rewards as OpenRLHF can carry them; what was replaced is logged."""
    if sets.run is not None:
        refuse_run(sets.run)
    return carried(sets.train, label, http=http)


def carried(rewards: RewardsConfig, label: str, *, http: bool) -> RewardsConfig:
    """`rewards` as OpenRLHF can carry them; what was replaced is logged."""
    refuse_nodes(rewards, TRAINER)
    engine = RewardEngine.from_config(rewards)
    try:
        found, notes = fit(rewards, engine, http=http)
        _check_label(label, engine.reads)
    finally:
        engine.close()
    say(TRAINER, notes)
    return found


def _check_label(label: str, reads: Collection[str]) -> None:
    """Refuse a column that was asked for and that nothing reads. The default one may be spare:
    labels that are mappings have names of their own."""
    if label != LABEL and reads and label not in reads:
        raise ConfigError(
            f"no mount reads the column label={label!r}; they read {', '.join(sorted(reads))}",
            hint=did_you_mean(label, reads),
        )


class OpenRlhfReward:
    """Scores queries.

    Args:
        rewards: what by; of `fit`.
        texts: takes queries apart.
        label: the column that labels are.
        weights: the file of the live weights, or None.
        engine: scores in place of one of its own, and is not closed with it.
        score: how `answer` has a batch scored by that engine; by default at once.
    """

    def __init__(
        self,
        rewards: RewardsConfig,
        texts: Texts,
        label: str,
        weights: Path | None = None,
        *,
        engine: RewardEngine | None = None,
        score: Score | None = None,
    ) -> None:
        self._score = score
        self.rewards, self.texts, self.label, self.weights = rewards, texts, label, weights
        self._engine = engine
        self._owns = engine is None
        self.loaded = False
        self._lock = threading.Lock()
        self._prefix, self._count = secrets.token_hex(4), itertools.count()  # of sample ids

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenRlhfReward, (self.rewards, self.texts, self.label, self.weights)

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: Any
    ) -> Answer:
        """One reward a query.

        Args:
            queries: B texts, each its prompt and the response.
            prompts: B texts.
            labels: B labels of the data set.

        Raises:
            RewardError: a row has no reward, or its response cannot be found.
        """
        engine = self.engine()
        return self._answer(engine.score(self._batch(engine, queries, prompts, labels)))

    async def answer(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> Answer:
        """The same for a coroutine."""
        import asyncio

        engine = await asyncio.to_thread(self.engine)
        batch = await asyncio.to_thread(self._batch, engine, queries, prompts, labels)
        score = self._score or engine.ascore
        return self._answer(await score(batch))

    def engine(self) -> RewardEngine:
        """What scores, loaded.

        Raises:
            ConfigError: the tokenizer or a provider cannot be loaded.
            ProviderError: a provider cannot be loaded.
        """
        with self._lock:
            if self._engine is None:
                if self.weights is not None:
                    self.weights.parent.mkdir(parents=True, exist_ok=True)
                self._engine = RewardEngine.from_config(
                    self.rewards, store_path=self.weights, store_shared=True
                )
            self.texts.load()
            self._engine.setup()
            self.loaded = True
            if self._engine.store is not None:
                self._engine.store.refresh()  # another process may have changed the weights
            return self._engine

    def close(self) -> None:
        """Release the providers, where they are its own."""
        with self._lock:
            engine, self._engine = self._engine, None if self._owns else self._engine
        if engine is not None and self._owns:
            engine.close()

    def _batch(
        self,
        engine: RewardEngine,
        queries: Sequence[str],
        prompts: Sequence[str],
        labels: Sequence[Any],
    ) -> RewardBatch:
        n = len(queries)
        for name, given in (("prompts", prompts), ("labels", labels)):
            if len(given) != n:
                raise ContractError(
                    f"{name} has a wrong length", provider=TRAINER, value=len(given), bound=n
                )
        pairs = zip(queries, prompts, strict=True)
        raw = [self.texts.response_of(query, prompt, i) for i, (query, prompt) in enumerate(pairs)]
        return RewardBatch(
            sample_ids=[f"{self._prefix}-{next(self._count)}" for _ in range(n)],
            prompts=prompts,
            responses=[self.texts.clean(text) for text in raw],
            responses_raw=raw,
            finish_reason=[self.texts.finish_reason(text) for text in raw],
            columns=label_columns(labels, self.label, engine.reads),
            training=True,
        )

    def _answer(self, table: RewardTable) -> Answer:
        """A table as OpenRLHF reads it; the names under ``extra_logs`` are the same for all rows.

        Raises:
            RewardError: a row is masked or skipped, or would be masked by the config as OpenRLHF
                carries it (an engine that was handed over serves the config as it is written).
        """
        refuse_dead(table, self.rewards, TRAINER)
        rewards = table.fused.tolist()
        logs = {
            f"reward/{name}": np.nan_to_num(part.contribution, nan=0.0).tolist()
            for name, part in table.columns.items()
        }
        logs["weights_revision"] = [float(table.revision)] * len(rewards)
        return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def refuse_dead(table: RewardTable, rewards: RewardsConfig, trainer: str) -> None:
    """Raise `RewardError` where a row must be left out of the training, which `trainer` cannot."""
    dead = np.isnan(table.fused) | table.skip
    for mount in rewards.mounts:
        if not mount.is_gate and mount.missing == "mask" and table.weights[mount.name] > 0.0:
            dead |= table.columns[mount.name].codes == ABSTAINED
    if dead.any():
        row = int(np.flatnonzero(dead)[0])
        skipped = "a gate keeps it out of the update" if table.skip[row] else None
        why = table.mask_reason[row] or skipped or "a mount abstained"
        notes = [f"{name}: {c.notes[row]}" for name, c in table.columns.items() if row in c.notes]
        said = "; ".join([why, *notes])
        raise RewardError(f"row {row} has no reward, and {trainer} cannot leave it out: {said}")


def label_columns(labels: Sequence[Any], label: str, reads: frozenset[str]) -> dict[str, list[Any]]:
    """The labels as the column `label`, or, where they are mappings, as a column a key.

    Raises:
        ConfigError: a mapping lacks a column that a mount reads.
    """
    if not any(isinstance(one, Mapping) for one in labels):
        return {label: list(labels)}
    rows = [one if isinstance(one, Mapping) else {label: one} for one in labels]
    names = dict.fromkeys(name for row in rows for name in row)
    for row, values in enumerate(rows):
        for name in sorted(reads & names.keys() - values.keys()):
            raise ConfigError(
                f"row {row}: its label has no {name!r}, which a mount reads",
                hint=f"it has {', '.join(values) or 'nothing'}",
            )
    return {name: [row.get(name) for row in rows] for name in names}
