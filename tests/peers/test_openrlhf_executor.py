"""OpenRLHF's own code, from a sampled response to its advantage, with our rewards in between.

It trains on GPUs only. Its executor (which asks for rewards), its sample maker and its advantages
run anywhere; what they import and never call here (ray, vLLM, DeepSpeed) is left out. Needs its
wheel without its dependencies: ``make test-peers``.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_core.integrations.openrlhf import reward_function
from verl_core.integrations.openrlhf_server import reward_app

torch = pytest.importorskip("torch")
pytest.importorskip("aiohttp", reason="OpenRLHF's client: make test-peers")
try:
    FILES = importlib.metadata.files("openrlhf") or []
except importlib.metadata.PackageNotFoundError:
    pytest.skip("OpenRLHF is not installed: make test-peers", allow_module_level=True)

PROMPT = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
REAL = (
    "utils.utils",
    "utils.seqlen_balancing",
    "models.utils",
    "trainer.ppo_utils.length_penalty",
    "trainer.ppo_utils.experience",
    "trainer.ppo_utils.samples_generator",
    "trainer.ppo_utils.experience_maker",
    "utils.agent",
)
ABSENT = (
    "deepspeed",
    "ray",
    "vllm",
    "openrlhf.trainer.ray.vllm_engine",
    "openrlhf.trainer.ray.launcher",
)


class Absent(ModuleType):
    """A module whose names can be imported and are good for nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@pytest.fixture
def openrlhf(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """OpenRLHF's modules by their last name, loaded by their files."""
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, Absent(name))
    logs = SimpleNamespace(init_logger=logging.getLogger)
    monkeypatch.setitem(sys.modules, "openrlhf.utils.logging_utils", logs)
    loaded = SimpleNamespace()
    for name in REAL:
        end = f"openrlhf/{name.replace('.', '/')}.py"
        path = next(file for file in FILES if str(file) == end).locate()
        spec = importlib.util.spec_from_file_location(f"openrlhf.{name}", path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        assert spec.loader is not None
        spec.loader.exec_module(module)
        setattr(loaded, name.rpartition(".")[2], module)
    return loaded


class Engine:
    """Gives what it is told to give, in the place of vLLM."""

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        self._ids = [tokenizer(text)["input_ids"] for text in texts]

    async def generate(self, prompt_ids: list[int], params: Any, **_: Any) -> Any:
        ids = self._ids.pop(0)
        return SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=ids, finish_reason="stop", logprobs=None)]
        )


@pytest.fixture
def sampled(openrlhf: Any, tiny_model_dir: Path) -> Callable[..., list[Any]]:
    """OpenRLHF's `Experience`s of one prompt's responses, with the rewards of `endpoint`."""

    def make(endpoint: str, texts: list[str], labels: list[Any]) -> list[Any]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
        executor = openrlhf.agent.SingleTurnAgentExecutor([endpoint])
        engine = Engine(tokenizer, texts)
        params = SimpleNamespace(max_tokens=64, logprobs=None)

        async def run() -> list[Any]:
            rows = [(PROMPT, label, params, 512, tokenizer, engine) for label in labels]
            return [await executor.execute(*row) for row in rows]

        kind = openrlhf.samples_generator.SamplesGenerator
        return [
            kind._process_response_into_experience(None, output, max_len=512)
            for output in asyncio.run(run())
        ]

    return make


@pytest.fixture
def advantages(openrlhf: Any) -> Callable[[list[Any]], list[float]]:
    """What OpenRLHF's group_norm gives each row, on its last token."""

    def compute(experiences: list[Any]) -> list[float]:
        batch = openrlhf.experience.Experience.concat_experiences(experiences, 0)
        batch.index = list(range(len(experiences)))
        batch.kl = torch.zeros(batch.action_mask.shape)
        algo = SimpleNamespace(
            advantage=SimpleNamespace(estimator="group_norm", gamma=1.0, no_std_norm=False)
        )
        reward = SimpleNamespace(clip_range=None)
        rollout = SimpleNamespace(n_samples_per_prompt=len(experiences), max_new_tokens=64)
        args = SimpleNamespace(algo=algo, reward=reward, rollout=rollout)
        maker = object.__new__(openrlhf.experience_maker.RemoteExperienceMaker)
        maker.strategy = SimpleNamespace(args=args)
        maker.args, maker.advantage_estimator = args, "group_norm"
        maker.kl_ctl = SimpleNamespace(value=0.0)
        (made,) = maker.compute_advantages_and_returns([batch])
        return [
            round(row[row != 0.0][-1].item() if row.any() else 0.0, 3) for row in made.advantages
        ]

    return compute


@pytest.fixture(params=["file", "server"])
def endpoint(
    request: pytest.FixtureRequest, served: Any, run_yaml: Callable[..., Path], tmp_path: Path
) -> Any:
    """What stands behind ``--reward.remote_url`` for these mounts: a file, or an address."""
    opened: list[Any] = []

    def make(*mounts: Any) -> str:
        path = run_yaml(*mounts)
        if request.param == "server":
            opened.append(served(reward_app(path)))
            return f"{opened[-1].__enter__()}/get_reward"
        file = tmp_path / "my_reward.py"
        file.write_text(
            "from verl_core.integrations.openrlhf import reward_function\n"
            f"reward_func = reward_function({str(path)!r})\n",
            encoding="utf-8",
        )
        return str(file)

    yield make
    for one in opened:
        one.__exit__(None, None, None)


TEXTS = ["because", "so", "who knows", "well"]


def test_rewards_of_the_config_become_openrlhfs_advantages(
    endpoint: Any, sampled: Any, advantages: Any, mounts: Any
) -> None:
    url = endpoint(mounts.cell("a", weight=2.0), mounts.cell("b"))
    labels = [{"a": a, "b": 0.0} for a in (1.0, 0.5, 0.5, 0.0)]
    experiences = sampled(url, TEXTS, labels)
    assert [e.rewards.flatten().tolist() for e in experiences] == [[2.0], [1.0], [1.0], [0.0]]
    assert experiences[0].info["reward/a"].flatten().tolist() == [2.0]
    assert advantages(experiences) == [1.225, 0.0, 0.0, -1.225]


def test_the_response_is_what_stands_behind_the_prompt(
    endpoint: Any, sampled: Any, peer_plugin: Any
) -> None:
    url = endpoint({"type": "vowels", "plugin": "vowels"})
    (experience,) = sampled(url, ["aei b<|im_end|>"], [""])
    assert experience.rewards.flatten().tolist() == pytest.approx([3 / 5])


def test_a_veto_is_a_reward(endpoint: Any, sampled: Any, mounts: Any) -> None:
    url = endpoint(mounts.cell("a"), mounts.gate("g"))
    labels = [{"a": 1.0, "g": "none"}, {"a": 1.0, "g": "veto"}]
    experiences = sampled(url, TEXTS[:2], labels)
    assert [e.rewards.item() for e in experiences] == [1.0, -1.0]


def test_token_rewards_of_spans_count_with_their_sum(
    endpoint: Any, sampled: Any, peer_plugin: Any
) -> None:
    url = endpoint({"type": "spans", "plugin": "spans"})
    experiences = sampled(url, ["one two three<|im_end|>", "one<|im_end|>"], ["", ""])
    assert [e.rewards.item() for e in experiences] == [1.5, 0.5]


def test_a_provider_that_needs_token_ids_fails_its_call(run_yaml: Any) -> None:
    """OpenRLHF hands over texts: a provider that scores tokens has none, and says so."""
    from verl_reward_sdk import RewardError

    function = reward_function(run_yaml({"type": "tokens", "plugin": "tokens"}))
    with pytest.raises(RewardError, match="tokens: 1 of 1 rows failed"):
        function([PROMPT + "because"], [PROMPT], [""])
    function.close()


@pytest.mark.parametrize("cell", [None, "broken"])
def test_a_row_without_a_reward_ends_openrlhfs_run_and_is_no_number(
    endpoint: Any,
    sampled: Any,
    advantages: Any,
    mounts: Any,
    cell: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = asyncio.sleep

    async def soon(seconds: float) -> None:
        """Its client waits a second before each of its five attempts; the server is not hurried."""
        await sleep(0.0 if seconds >= 1.0 else seconds)

    url = endpoint(mounts.cell("a"), mounts.cell("b"))
    monkeypatch.setattr(asyncio, "sleep", soon)
    labels = [{"a": 1.0, "b": 0.0}, {"a": cell, "b": 0.0}]
    experiences = sampled(url, TEXTS[:2], labels)
    assert experiences[0].rewards.item() == 1.0
    assert experiences[1].rewards is None
    with pytest.raises((AttributeError, TypeError)):
        advantages(experiences)
