"""A plugin whose rewards say what a test's columns say, configs that mount them, and our manager
inside verl."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
import yaml

MODULE = '''
import re

from verl_reward_sdk import AsyncRewardProvider, RewardProvider, RewardResult, hookimpl
from verl_reward_sdk.provider import ProviderConfig

VERL_REWARD_API = 1


class Of(ProviderConfig):
    column: str = "cell"


class Cells(RewardProvider[Of]):
    """Scores a row by its cell: a number is the score, None an abstention, a text a failure."""

    name = "cells"
    execution = "inline"

    @property
    def reads(self):
        return frozenset({self.config.column})

    def score(self, batch):
        cells = batch.columns[self.config.column]
        return RewardResult(
            scores=[cell if isinstance(cell, (int, float)) else 0.0 for cell in cells],
            present=[cell is not None for cell in cells],
            failures={i: cell for i, cell in enumerate(cells) if isinstance(cell, str)},
        )


class Words(Cells):
    """A gate: the cell is a severity, None an abstention, a text with ! a failure."""

    name = "words"
    role = "gate"

    def score(self, batch):
        cells = batch.columns[self.config.column]
        failures = {i: c for i, c in enumerate(cells) if isinstance(c, str) and "!" in c}
        return RewardResult(
            scores=[0.0] * len(cells),
            present=[cell is not None for cell in cells],
            failures=failures,
            severity=[None if i in failures else cell for i, cell in enumerate(cells)],
        )


class Row(ProviderConfig):
    cells: list


class Slots(RewardProvider[Row]):
    """Scores the rows by its own cells, over and over."""

    name = "slots"
    execution = "inline"

    def cells(self, batch):
        return [self.config.cells[i % len(self.config.cells)] for i in range(len(batch))]

    def score(self, batch):
        cells = self.cells(batch)
        return RewardResult(
            scores=[cell if isinstance(cell, (int, float)) else 0.0 for cell in cells],
            present=[cell is not None for cell in cells],
            failures={i: cell for i, cell in enumerate(cells) if isinstance(cell, str)},
        )


class SlotWords(Slots):
    """A gate that says its own cells, over and over."""

    name = "slot_words"
    role = "gate"

    def score(self, batch):
        return RewardResult(scores=[0.0] * len(batch), severity=self.cells(batch))


class Vowels(RewardProvider):
    """The share of letters that are vowels: differs from response to response."""

    name = "vowels"
    execution = "inline"

    def score(self, batch):
        return [sum(c in "aeiou" for c in r.lower()) / max(1, len(r)) for r in batch.responses]


class Later(AsyncRewardProvider):
    """The same as a coroutine."""

    name = "later"

    async def score(self, batch):
        return [float(len(response)) for response in batch.responses]


class Pairs(RewardProvider):
    """Compares the responses of a group: the longest has 1."""

    name = "pairs"
    scope = "group"
    execution = "inline"

    def score(self, batch):
        longest = {}
        for group, response in zip(batch.group_ids, batch.responses):
            longest[group] = max(longest.get(group, 0), len(response))
        rows = zip(batch.group_ids, batch.responses)
        return [float(len(response) == longest[group]) for group, response in rows]


class Tokens(RewardProvider):
    """A quarter of a point a token."""

    name = "tokens"
    execution = "inline"
    token_scores = True

    def score(self, batch):
        rows = [[0.25] * len(ids) for ids in batch.response_ids]
        return RewardResult(scores=[sum(row) for row in rows], token_scores=rows)


class Spans(RewardProvider):
    """Half a point a word, told by the word's place in the text."""

    name = "spans"
    execution = "inline"
    token_scores = True

    def score(self, batch):
        words = [list(re.finditer("[a-z]+", text)) for text in batch.responses]
        rows = [[(word.start(), word.end(), 0.5) for word in row] for row in words]
        return RewardResult(scores=[0.5 * len(row) for row in rows], token_scores=rows)


class Seen(RewardProvider):
    """Keeps the last batch that it was given, and how often it was asked."""

    name = "seen"
    execution = "inline"
    batches = []

    def score(self, batch):
        self.batches.append(batch)
        return [0.0] * len(batch)


@hookimpl
def verl_reward_providers():
    yield from (Cells, Words, Slots, SlotWords, Vowels, Later, Pairs, Tokens, Spans, Seen)
'''
NAMES = (
    "cells",
    "words",
    "slots",
    "slot_words",
    "vowels",
    "later",
    "pairs",
    "tokens",
    "spans",
    "seen",
)


@pytest.fixture
def peer_plugin(plugin_site: Any) -> Any:
    """The `PluginSite` with the rewards of `MODULE`."""
    rewards = dict.fromkeys(NAMES, "peer_kit")
    plugin_site.add("peer-kit", rewards=rewards, files={"peer_kit.py": MODULE})
    return plugin_site


@pytest.fixture
def run_yaml(tmp_path: Path, peer_plugin: Any) -> Callable[..., Path]:
    """Writes a YAML that says no more than its rewards."""

    def write(*mounts: Mapping[str, Any], name: str = "run", **more: Any) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"reward": list(mounts), **more}), encoding="utf-8")
        return path

    return write


def cell(name: str, **keys: Any) -> dict[str, Any]:
    """A mount of the plugin's `cells` that reads the column called as the mount."""
    return {"type": name, "plugin": "cells", "init_kwargs": {"column": name}, **keys}


def gate(name: str, **keys: Any) -> dict[str, Any]:
    """A gate whose word stands in the column called as the mount."""
    settings = {"role": "gate", "penalty": -1.0, "init_kwargs": {"column": name}}
    return {"type": name, "plugin": "words", **settings, **keys}


def slots(name: str, *cells: Any, **keys: Any) -> dict[str, Any]:
    """A mount that scores the rows by these cells, over and over."""
    return {"type": name, "plugin": "slots", "init_kwargs": {"cells": list(cells)}, **keys}


def slot_words(name: str, *words: str, **keys: Any) -> dict[str, Any]:
    """A gate that says these words to the rows, over and over."""
    settings = {"role": "gate", "penalty": -1.0, "init_kwargs": {"cells": list(words)}}
    return {"type": name, "plugin": "slot_words", **settings, **keys}


@pytest.fixture
def mounts() -> SimpleNamespace:
    """What writes mounts of the plugin."""
    return SimpleNamespace(cell=cell, gate=gate, slots=slots, slot_words=slot_words)


@contextmanager
def served_app(app: Any) -> Iterator[str]:
    """A real server on a free port; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def served() -> Callable[..., Any]:
    """`served_app`."""
    return served_app


# -- inside verl: imported where a test asks for it, since other peers' environments lack it --


@pytest.fixture(scope="session")
def base_config(tiny_model_dir: Path) -> Any:
    """The config of verl's trainer."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={tiny_model_dir}",
                "actor_rollout_ref.rollout.response_length=20",
                "reward.num_workers=2",
            ],
        )


@pytest.fixture
def verl_config(base_config: Any) -> Callable[..., Any]:
    """verl's own config with more overrides, composed as its trainer does."""
    from tests.peers.verl_kit import overridden

    return lambda *overrides: overridden(base_config, *overrides)


@pytest.fixture(scope="session")
def tokenizer(tiny_model_dir: Path) -> Any:
    """The tiny model's, as verl loads it."""
    from verl.utils import hf_tokenizer

    return hf_tokenizer(str(tiny_model_dir))


@pytest.fixture
def probe(plugin_site: Any) -> Callable[[], list[Any]]:
    """Installs the plugin `probe`; gives the batches that it was asked to score."""
    from tests.peers.verl_kit import PROBE

    names = dict.fromkeys(("probe", "gate_probe", "group_probe"), "probe_plugin")
    plugin_site.add("probe-plugin", rewards=names, files={"probe_plugin.py": PROBE})

    def calls() -> list[Any]:
        module = sys.modules.get("probe_plugin")
        return [] if module is None else module.CALLS

    return calls


@pytest.fixture
def manager(
    tmp_path: Path, probe: Any, verl_config: Any, tokenizer: Any
) -> Iterator[Callable[..., Any]]:
    """Has verl load the manager for some mounts."""
    from verl.trainer.ppo.reward import load_reward_manager

    from tests.peers.verl_kit import SEAM

    made = []

    def load(*mounts: dict[str, Any], settings: Sequence[str] = (), **top: Any) -> Any:
        path = tmp_path / f"run-{len(made)}.yaml"
        path.write_text(json.dumps({"reward": list(mounts)} | top), "utf-8")
        at = "+reward.reward_kwargs.verl_reward"
        more = [f"{at}.{setting}" for setting in settings]
        config = verl_config(*SEAM, f"{at}.config={path}", *more)
        made.append(load_reward_manager(config, tokenizer))
        return made[-1]

    yield load
    for one in made:
        one.engine.close()


@pytest.fixture
def row(tokenizer: Any) -> Callable[..., Any]:
    """A `DataProto` of one response, as verl's agent loop makes it."""
    from tests.peers.verl_kit import outputs

    def build(text: str, *, pad: int = 0, eos: bool = True, **columns: Any) -> Any:
        return outputs([text], tokenizer, pad=pad, eos=eos, **columns)

    return build
