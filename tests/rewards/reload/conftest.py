"""Plugins that read files: one a number, one a safetensors model, strict about all of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import FusionConfig, RewardsConfig
from verl_core.rewards import RewardEngine

PLUGIN = r'''
"""Plugins of the tests of hot reload."""
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_reward_sdk import AssetPath, ProviderConfig, RewardBatch, RewardProvider, hookimpl

VERL_REWARD_API = 1
VERSION = "1"


class NumberConfig(ProviderConfig):
    file: AssetPath
    note: Path | None = None
    slow: float = 0.0
    wait_for: Path | None = None
    most: float = 1000.0


class Number(RewardProvider[NumberConfig]):
    """Scores every row by the number in its file, which is read once."""
    name = "number"
    score_range = (0.0, 1000.0)
    execution = "inline"

    def assets(self) -> tuple[Path, ...]:
        return (self.config.file,)

    def setup(self) -> None:
        if self.config.note is not None:
            with self.config.note.open("a") as note:
                note.write(self.config.file.read_text() + "\n")
        text = self.config.file.read_text()
        if text.startswith("memory"):
            raise MemoryError("no memory for it")
        self.number = float(text.split()[0])
        if self.config.wait_for is not None:
            while not self.config.wait_for.exists():
                time.sleep(0.01)
        time.sleep(self.config.slow)

    def score(self, batch: RewardBatch) -> list[float]:
        return [self.number] * len(batch)

    def close(self) -> None:
        if self.config.note is not None:
            with self.config.note.open("a") as note:
                note.write(f"closed {self.number:g}\n")


class Code(RewardProvider[ProviderConfig]):
    """Scores by the version of this very module."""
    name = "code"

    def score(self, batch: RewardBatch) -> list[float]:
        return [float(VERSION)] * len(batch)


class StrictConfig(ProviderConfig):
    model: AssetPath
    labels: list[str] | None = None
    lazy: bool = False


class Strict(RewardProvider[StrictConfig]):
    """A classifier from a folder: ``config.json`` and ``model.safetensors``. It loads what fits and
    nothing else; NaN weights it does not notice."""
    name = "strict"
    score_range = (0.0, 1.0)

    def assets(self) -> tuple[Path, ...]:
        return (self.config.model,)

    @property
    def labels(self) -> Sequence[str] | None:
        return self.config.labels or self._labels

    def setup(self) -> None:
        from safetensors import safe_open

        described = json.loads((self.config.model / "config.json").read_text())
        self._labels = described["labels"]
        shapes = {
            "embed.weight": [256, described["hidden"]],
            "head.weight": [len(self._labels), described["hidden"]],
        }
        self._file = safe_open(self.config.model / "model.safetensors", framework="numpy")
        found = {name: self._file.get_slice(name).get_shape() for name in self._file.keys()}
        for name in sorted(shapes.keys() | found.keys()):
            if found.get(name) != shapes.get(name):
                raise ValueError(f"{name}: {found.get(name)}, expected {shapes.get(name)}")
        if not self.config.lazy:
            self._weights = {name: self._file.get_tensor(name) for name in found}
            self._file = None

    def score(self, batch: RewardBatch) -> list[float]:
        import numpy as np

        if self.config.lazy:  # out of the memory map of the file
            embed, head = map(self._file.get_tensor, ("embed.weight", "head.weight"))
        else:
            embed, head = self._weights["embed.weight"], self._weights["head.weight"]
        first = (self.config.labels or self._labels)[0]
        column = self._labels.index(first)
        scores = []
        for response in batch.responses:
            raw = list(response.encode()) or [0]
            logits = head @ embed[raw].mean(axis=0)
            odds = np.exp(logits - logits.max())
            scores.append(float(odds[column] / odds.sum()))
        return scores


class Learning(Number):
    """Adds up how many rows it has scored."""
    name = "learning"
    score_range = (0.0, 1e9)

    def setup(self) -> None:
        super().setup()
        self.seen = 0

    def score(self, batch: RewardBatch) -> list[float]:
        self.seen += len(batch)
        return [float(self.seen)] * len(batch)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Included(Number):
    """Its file names another one beside it, which holds the number."""
    name = "included"

    def setup(self) -> None:
        name = self.config.file.read_text().strip()
        self.number = float((self.config.file.parent / name).read_text())


CHANGES: list[Any] = []


@hookimpl
def verl_reward_generation_changed(mount: str, before: Any, after: Any) -> None:
    CHANGES.append((mount, before, after))


@hookimpl
def verl_reward_providers():
    yield from (Number, Code, Strict, Learning, Included)
'''


class Reloading:
    """Builds engines over the plugins, and replaces their files as people do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[RewardEngine] = []

    def mount(self, name: str = "n", plugin: str = "number", **keys: Any) -> dict[str, Any]:
        kwargs = keys.pop("init_kwargs", {})
        if plugin != "code" and "model" not in kwargs:
            kwargs = {"file": f"{name}.txt", **kwargs}
        return {"type": name, "plugin": plugin, "init_kwargs": kwargs, **keys}

    def engine(
        self, *mounts: Mapping[str, Any], setup: bool = True, **options: Any
    ) -> RewardEngine:
        config = RewardsConfig(
            mounts=tuple(MountConfig(**mount) for mount in mounts),
            fusion=FusionConfig(policy=options.pop("policy", "weighted_sum")),
            base_dir=self.folder,
        )
        built = RewardEngine.from_config(config, **{"settle": 0.02, **options})
        self.engines.append(built)
        if setup:
            built.setup()
        return built

    def write(self, text: str | float, name: str = "n") -> Path:
        """Replace a number's file by a rename, as a careful program does."""
        path = self.folder / f"{name}.txt"
        draft = self.folder / f".{name}.draft"
        draft.write_text(str(text))
        os.replace(draft, path)
        return path

    def model(
        self,
        path: Path | None = None,
        *,
        seed: int = 0,
        hidden: int = 8,
        labels: tuple[str, ...] = ("safe", "unsafe"),
        rename: Mapping[str, str] | None = None,
        drop: tuple[str, ...] = (),
        nan: bool = False,
        write: tuple[str, ...] = ("config.json", "model.safetensors"),
    ) -> Path:
        """Write a model's folder, each file by a rename."""
        from safetensors.numpy import save

        path = path or self.folder / "model"
        path.mkdir(exist_ok=True)
        rng = np.random.default_rng(seed)
        weights = {
            "embed.weight": rng.normal(size=(256, hidden)).astype(np.float32),
            "head.weight": rng.normal(size=(len(labels), hidden)).astype(np.float32),
        }
        if nan:
            weights["head.weight"][0, 0] = np.nan
        weights = {(rename or {}).get(k, k): v for k, v in weights.items() if k not in drop}
        files = {
            "config.json": json.dumps({"labels": labels, "hidden": hidden}).encode(),
            "model.safetensors": save(weights),
        }
        for name in write:
            replace(path / name, files[name])
        return path


def replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


@pytest.fixture
def reloading(plugin_site: Any, tmp_path: Path) -> Iterator[Reloading]:
    plugin_site.add(
        "verl-reward-reloading",
        rewards=dict.fromkeys(
            ("number", "code", "strict", "learning", "included"), "reloading_plugin"
        ),
        files={"reloading_plugin.py": PLUGIN},
    )
    folder = tmp_path / "config"
    folder.mkdir()
    made = Reloading(folder)
    yield made
    for engine in made.engines:
        engine.close()


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Wait for something to become true, at most a minute; what it is then."""

    def wait(condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + 60
        while not (found := condition()):
            assert time.monotonic() < end, "it never came"
            time.sleep(0.01)
        return found

    return wait


@pytest.fixture
def shown() -> Callable[..., dict[str, Any]]:
    """One mount of `describe`."""

    def of(engine: RewardEngine, name: str = "n") -> dict[str, Any]:
        return next(mount for mount in engine.describe() if mount["name"] == name)

    return of


@pytest.fixture
def score(kit: Any) -> Callable[..., float]:
    """The score of each of a few rows, which is the same."""

    def of(engine: RewardEngine, lease: Any = None, name: str = "n", n: int = 3) -> float:
        table = engine.score(kit.batch(n), lease=lease)
        (value,) = set(table.columns[name].scores.tolist())
        return float(value)

    return of
