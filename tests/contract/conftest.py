"""Engines of small providers of one's own, as a run builds them from its YAML."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import FusionConfig, RewardsConfig
from verl_core.rewards import RewardEngine
from verl_reward_sdk import ProviderConfig, RewardBatch, RewardProvider


class Says(RewardProvider[ProviderConfig]):
    """Answers what a function makes of the batch."""

    execution = "inline"

    def __init__(self, answer: Callable[[RewardBatch], Any]) -> None:
        super().__init__(ProviderConfig())
        self.answer = answer

    def score(self, batch: RewardBatch) -> Any:
        return self.answer(batch)


def provider(answer: Any, **attributes: Any) -> RewardProvider[Any]:
    """A provider that answers `answer`, a column's values, or what ``answer(batch)`` gives.

    Args:
        answer: a function of the batch, the name of the column that holds the scores, or a list.
        attributes: of its class: ``score_range``, ``execution``, ``role``…
    """
    if isinstance(answer, str):
        attributes = {"reads": frozenset({answer}), **attributes}
    members = {"score_range": (float("-inf"), float("inf")), **attributes}

    def score(batch: RewardBatch) -> Any:
        if isinstance(answer, str):
            return list(batch.columns[answer])
        return answer(batch) if callable(answer) else answer

    return type("Said", (Says,), members)(score)


def built(*mounts: Mapping[str, Any], **options: Any) -> RewardEngine:
    """An engine of mounts as in YAML, but for ``provider``: an instance.

    Args:
        options: ``policy``, ``fusion`` (its options), ``allow_zero``; others go to `from_config`.
    """
    providers = {mount["type"]: mount["provider"] for mount in mounts}
    configs = tuple(
        MountConfig(**{k: v for k, v in mount.items() if k != "provider"}, node_class="own.Node")
        for mount in mounts
    )

    def make(config: MountConfig, base_dir: Path) -> RewardProvider[Any]:
        return providers[config.name]

    fusion = FusionConfig(
        policy=options.pop("policy", "weighted_sum"),
        allow_zero=options.pop("allow_zero", False),
        **options.pop("fusion", {}),
    )
    config = RewardsConfig(mounts=configs, fusion=fusion)
    return RewardEngine.from_config(config, node_factory=make, **options)


@pytest.fixture
def says() -> Callable[..., RewardProvider[Any]]:
    """`provider`."""
    return provider


@pytest.fixture
def engine() -> Iterator[Callable[..., RewardEngine]]:
    """`built`; closed when the test ends."""
    made: list[RewardEngine] = []

    def build(*mounts: Mapping[str, Any], **options: Any) -> RewardEngine:
        made.append(built(*mounts, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def rows() -> Callable[..., RewardBatch]:
    """``rows(2)`` or ``rows(a=[1, 2], groups="xx", …)``: a batch of a training step, with these
    columns."""

    def make(n: int = 0, /, *, groups: Sequence[Any] | None = None, **columns: Any) -> RewardBatch:
        fields = {"training": columns.pop("training", True), "step": columns.pop("step", 3)}
        n = n or len(next(iter(columns.values())))
        return RewardBatch(
            sample_ids=[f"s{i}" for i in range(n)],
            prompts=[f"question {i}" for i in range(n)],
            responses=[f"answer {i}" for i in range(n)],
            group_ids=None if groups is None else list(groups),
            columns=columns,
            **fields,
        )

    return make


NOTES = """
import json, os, pathlib
from verl_reward_sdk import ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1

class Notes(RewardProvider[ProviderConfig]):
    name = "notes"

    def score(self, batch):
        fields = ("policy_version", "step", "training")
        common = {name: getattr(batch, name) for name in fields}
        with pathlib.Path(os.environ["NOTES"]).open("a") as file:
            for i in range(len(batch)):
                row = {
                    "sample_id": batch.sample_ids[i],
                    "group_id": batch.group_ids[i],
                    "prompt": batch.prompts[i],
                    "response": batch.responses[i],
                    "raw": batch.responses_raw[i],
                    "finish_reason": batch.finish_reason[i],
                    "ids": batch.response_ids[i].tolist(),
                    "mask": batch.response_mask[i].tolist(),
                    "columns": {name: column[i] for name, column in batch.columns.items()},
                }
                file.write(json.dumps(row | common) + "\\n")
        return [float(len(response)) for response in batch.responses]

@hookimpl
def verl_reward_providers():
    return [Notes]
"""


@pytest.fixture
def noted_run(
    tiny_run: Any, plugin_site: Any, monkeypatch: pytest.MonkeyPatch, fresh_imports: None
) -> tuple[Any, Callable[[], list[dict[str, Any]]]]:
    """The tiny run with one more mount, a plugin that notes every row that it is given; and what
    gives those rows."""
    plugin_site.add("notes", rewards={"notes": "notes_reward"}, files={"notes_reward.py": NOTES})
    path = tiny_run.folder / "notes.jsonl"
    monkeypatch.setenv("NOTES", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin_site.folder)]))
    tiny_run.config["reward"].append({"type": "notes", "plugin": "notes", "weight": 0.1})
    return tiny_run, lambda: [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
