"""Each policy, `normalize:` and GDPO in real training steps, and what they learn over a resume."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import flow
from verl_core.config import load_run_config
from verl_core.rewards.engine import RewardEngine
from verl_core.trainer import reward_state
from verl_core.trainer.advantage.gdpo import gdpo_advantages
from verl_core.trainer.checkpoint import latest
from verl_core.trainer.nodes.advantage import GDPONode
from verl_core.trainer.nodes.fuse import FuseNode
from verl_core.trainer.reward import reward_batch
from verl_core.trainer.setup import Session
from verl_core.trainer.train import save, train_step
from verl_reward_sdk import RewardProvider, RewardResult
from verl_reward_sdk.provider import ProviderConfig

STEPS = 14
MEASURED = ("time", "timing_s/", "perf/")

REWARDS = {"novelty": "acme_novelty", "flaky": "acme_novelty"}
#: Scores a response by how new it is, and remembers them in an array.
NOVELTY = '''
import numpy as np
from verl_reward_sdk import RewardProvider, hookimpl

VERL_REWARD_API = 1


class Novelty(RewardProvider):
    """How far a response's length is from the mean of all lengths so far."""

    name = "novelty"

    def setup(self):
        self.sums = np.zeros(2)

    def score(self, batch):
        lengths = [float(len(text)) for text in batch.responses]
        mean = self.sums[0] / max(self.sums[1], 1.0)
        self.sums += [sum(lengths), len(lengths)]
        return [abs(length - mean) / 10 for length in lengths]

    def state(self):
        return {"sums": self.sums}

    def load_state(self, state):
        self.sums = state["sums"]


class Flaky(RewardProvider):
    """Fails once in step 2."""

    name = "flaky"
    failed = 0

    def score(self, batch):
        if batch.step == 2 and not Flaky.failed:
            Flaky.failed += 1
            raise RuntimeError("down")
        return [0.5] * len(batch)


@hookimpl
def verl_reward_providers():
    yield Novelty
    yield Flaky
'''


# -- every policy trains --


@pytest.mark.parametrize(
    ("fusion", "weight"),
    [
        ({"policy": "weighted_mean"}, 0.5),
        ({"policy": "product"}, 0.5),
        ({"policy": "min"}, 1.0),
        ({"policy": "lexicographic", "tolerance": {"style": 0.2}}, 1.0),
        ({"policy": "constrained", "bounds": {"overlap": 0.5}, "rate": 2.0}, 0.5),
    ],
    ids=lambda value: value["policy"] if isinstance(value, dict) else None,
)
def test_every_policy_trains(tiny_run, read_jsonl, fusion, weight):
    tiny_run.config["fusion"] = fusion
    tiny_run.config["reward"][1] |= {"weight": weight}
    folder = tiny_run.train("trainer.steps=2", "rollout.eval_n=2")
    first, second = read_jsonl(folder / "metrics.jsonl")
    assert first["actor/grad_norm"] > 0
    assert math.isfinite(second["reward/fused/mean"])
    start = load_file(tiny_run.config["model"]["path"] + "/model.safetensors")
    end = load_file(folder / "checkpoints/step_000002/policy/model.safetensors")
    assert any(not torch.equal(start[name], end[name]) for name in end)
    if fusion["policy"] == "constrained":
        assert first["reward/overlap/multiplier"] == 0.0
        moved = 2.0 * (0.5 - first["reward/overlap/mean"])
        assert second["reward/overlap/multiplier"] == pytest.approx(moved)
        assert moved > 0.0
        for line in read_jsonl(folder / "eval" / "after.jsonl"):
            mounts = line["explain"]["mounts"]  # evaluation's multipliers stay at 0
            if mounts["overlap"]["contribution"] is not None and line["fused"] != -1.0:
                assert line["fused"] == pytest.approx(
                    mounts["style"]["raw"] + weight * mounts["overlap"]["raw"]
                )


@pytest.mark.parametrize("way", ["group", "batch", "running"])
def test_normalised_rewards_train_and_are_explained(tiny_run, read_jsonl, way):
    tiny_run.config["reward"][0] |= {"normalize": way}
    folder = tiny_run.train("trainer.steps=2")
    line = read_jsonl(folder / "metrics.jsonl")[1]
    assert line["actor/grad_norm"] > 0
    style = [row["explain"]["mounts"]["style"] for row in read_jsonl(folder / "samples.jsonl")]
    assert any(mount["normalised"] != mount["raw"] for mount in style)
    if way == "running":  # after two steps of eight rows, none of which were evaluation's
        state = latest(folder).load(reward_state.NAME)
        assert state["fusion"]["running"]["style"]["count"] == 16
        assert state["fusion"]["step"] == 2


def test_gdpo_trains_by_what_the_table_holds(tiny_run, read_jsonl):
    tiny_run.config["dataflow"] = flow(advantage=["gdpo"])
    line = read_jsonl(tiny_run.train("trainer.steps=1") / "metrics.jsonl")[0]
    assert line["actor/grad_norm"] > 0
    assert line["reward/groups_dropped"] == 0


@pytest.fixture
def scored(tiny_run, tiny_models, tiny_step):
    """``scored(provider, mounts=…)``: a step behind fusion; `provider` scores the mount `own`."""
    engines = []

    def score(provider, texts, *, weight=1.0, **mounts):
        models = tiny_models()
        own = {"type": "own", "node_class": "own.Own", "weight": weight}
        tiny_run.config["reward"] = [own, *mounts.pop("more", tiny_run.config["reward"][2:])]
        cfg = load_run_config(tiny_run.write())
        engine = RewardEngine.from_config(
            cfg.rewards(), node_factory=lambda mount, folder: provider
        )
        engines.append(engine)
        batch = tiny_step(models, texts, n=2)
        scoring = engine.open(reward_batch(batch, training=True))
        scoring.run(engine.mounts)
        batch.write({"scoring": scoring})
        written = FuseNode(list(engine.mounts), models).run(batch)
        batch.write(written)
        return batch

    yield score
    for engine in engines:
        engine.close()


class Spans(RewardProvider[ProviderConfig]):
    """1 for the first character of a response, 0.5 for its last."""

    execution = "inline"
    token_scores = True

    def score(self, batch):
        spans = [[(0, 1, 1.0), (len(t) - 1, len(t), 0.5)] for t in batch.responses]
        return RewardResult(scores=[1.5] * len(batch), token_scores=spans)


def test_spans_lie_on_the_tokens_that_end_them_and_a_veto_takes_their_place(scored):
    batch = scored(Spans(ProviderConfig()), ["abc", "zq", "hé", "e f"], weight=2.0)
    rewards = batch["token_level_rewards"]
    table = batch["table"]
    assert rewards.sum(dim=1).tolist() == pytest.approx(table.fused.tolist())
    assert rewards[0].tolist()[:4] == [2.0, 0.0, 1.0, 0.0]  # a, b, c, end: nothing is left
    assert table.fused[1] == -1.0  # the gate's word
    assert rewards[1].tolist()[:3] == [0.0, 0.0, -1.0]
    assert rewards[2].tolist()[:4] == [2.0, 0.0, 1.0, 0.0]  # the é is whole with its second byte


def test_what_is_not_a_token_score_lies_on_the_last_token(scored, tiny_run):
    style = {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}}
    batch = scored(Spans(ProviderConfig()), ["abc", "xyz"], more=[style])
    rewards, table = batch["token_level_rewards"], batch["table"]
    assert rewards[0, :3].tolist() == [1.0, 0.0, 0.5]
    assert rewards[0, 3] == pytest.approx(table.columns["style"].scores[0])
    assert rewards.sum(dim=1).tolist() == pytest.approx(table.fused.tolist())


def test_the_node_hands_gdpo_the_columns_weights_and_penalties_of_the_table(scored):
    class Own(RewardProvider[ProviderConfig]):
        """Abstains from the third row."""

        execution = "inline"

        def score(self, batch):
            return [0.25, 1.0, None, 0.5][: len(batch)]

    batch = scored(Own(ProviderConfig()), ["ab", "zq", "cd", "ef"], weight=2.0)
    node = GDPONode()
    assert node.reads <= set(batch.columns)
    advantages = node.run(batch)["advantages"]
    assert batch["live"].tolist() == [True, True, False, True]  # nothing gave the third a score
    expected = gdpo_advantages(
        torch.tensor([[0.25], [1.0], [0.5], [0.5]]),
        torch.tensor([2.0]),
        batch["group_index"],
        batch["live"],
        batch["in_baseline"],
        neutral=torch.tensor([[False], [False], [True], [False]]),
        penalties=torch.tensor([[0.0], [-1.0], [0.0], [0.0]]),
    )
    assert torch.equal(advantages, expected.values[:, None] * batch["loss_mask"])
    assert batch.metrics["reward/groups_dropped"] == expected.dropped == 1
    assert advantages[0, 0] < 0 < advantages[1, 0]


# -- over a resume --


def test_kill_9_then_resume_goes_on_with_all_that_was_learnt(
    tiny_run, plugin_site, read_jsonl, monkeypatch
):
    """Running statistics, multipliers, and a provider of its own memory: the same bits."""
    plugin_site.add("acme", rewards=REWARDS, files={"acme_novelty.py": NOVELTY})
    monkeypatch.setenv("PYTHONPATH", str(plugin_site.folder))
    tiny_run.config["reward"][0] |= {"normalize": "running"}
    tiny_run.config["reward"].insert(2, {"type": "novelty", "plugin": "novelty", "weight": 0.3})
    tiny_run.config["fusion"] = {
        "policy": "constrained",
        "bounds": {"overlap": 0.5},
        "rate": 1.0,
    }
    tiny_run.config["trainer"] |= {"steps": STEPS, "checkpoint_every": 3}
    folder = tiny_run.folder / "runs" / "tiny"
    process = subprocess.Popen(
        tiny_run.command(),
        cwd=tiny_run.folder,
        env=tiny_run.environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        path = folder / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not path.exists() or path.read_bytes().count(b"\n") < 7:
            assert process.poll() is None, "the run ended early"
            assert time.monotonic() < deadline, "the run took too long"
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    broken_off = len(read_jsonl(path))
    assert 7 <= broken_off < STEPS
    resumed = tiny_run.run("--resume", str(folder))
    assert resumed.returncode == 0, resumed.stderr
    metrics = [_bits(line) for line in read_jsonl(path)]

    cfg = load_run_config(tiny_run.write(), ["name=unbroken"])
    with Session(cfg, plain=True) as run:
        for step in range(1, STEPS + 1):
            run.record(step, train_step(run, step))
        save(run, STEPS)
        unbroken = run.folder.path
    assert metrics == [_bits(line) for line in read_jsonl(unbroken / "metrics.jsonl")]
    assert metrics[-1]["reward/overlap/multiplier"] > metrics[1]["reward/overlap/multiplier"] > 0.0
    end, whole = latest(folder), latest(unbroken)
    one, other = (load_file(found.policy / "model.safetensors") for found in (end, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)
    states = [reward_state._unpacked(found.load(reward_state.NAME)) for found in (end, whole)]
    assert states[0]["fusion"] == states[1]["fusion"]
    sums = [state["providers"]["novelty"]["sums"].tolist() for state in states]
    assert sums[0] == sums[1]
    assert sums[0][1] == STEPS * 8  # each row once


def _bits(line):
    return {key: value for key, value in line.items() if not key.startswith(MEASURED)}


def test_a_step_whose_rewards_failed_is_learnt_from_once(tiny_run, plugin_site, monkeypatch):
    """The first attempt of step 2 fails after the provider has learnt from its rows."""
    monkeypatch.setattr("verl_core.trainer.train.time.sleep", lambda seconds: None)
    plugin_site.add("acme", rewards=REWARDS, files={"acme_novelty.py": NOVELTY})
    tiny_run.config["reward"][0] = {"type": "novelty", "plugin": "novelty", "normalize": "running"}
    tiny_run.config["reward"][1] = {"type": "flaky", "plugin": "flaky", "on_error": "raise"}
    cfg = load_run_config(tiny_run.write())
    with Session(cfg, plain=True) as run:
        train_step(run, 1)
        metrics = train_step(run, 2)
        assert type(run.engine.mounts["flaky"].provider).failed == 1
        state = run.engine.state()
    assert metrics["reward/flaky/failed"] == 0.0
    assert state["providers"]["novelty"]["sums"][1] == 2 * 8
    assert state["fusion"]["running"]["novelty"]["count"] == 2 * 8


def test_arrays_of_a_state_survive_the_checkpoint_and_are_no_pickled_code(tmp_path):
    state = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": [np.float64(0.5).item(), {"c": (1, "x", b"y", None, True)}],
        "words": np.array(["é", "long"]),
        "none": np.zeros((0, 2)),
    }
    torch.save(reward_state._packed(state), tmp_path / "s.pt")
    back = reward_state._unpacked(torch.load(tmp_path / "s.pt", weights_only=True))
    assert back.keys() == state.keys()
    assert back["b"] == state["b"]
    for name in ("a", "words", "none"):
        assert back[name].dtype == state[name].dtype
        assert back[name].tolist() == state[name].tolist()
        assert back[name].shape == state[name].shape


def test_a_checkpoint_from_before_rewards_were_kept_begins_them_anew(tiny_run):
    folder = tiny_run.train("trainer.steps=1")
    found = latest(folder)
    (found.path / f"{reward_state.NAME}.pt").unlink()
    facts = found.path / "trainer.json"  # which did not list files then
    facts.write_text(json.dumps(found.info()), encoding="utf-8")
    tiny_run.train("trainer.steps=2", resume=folder)
    assert latest(folder).step == 2
