"""The document that the project implements: its node and both its YAML fragments run as printed.

Only what the document itself leaves to the reader comes from outside: a model and data, and
`model_name`, `device` and `safe_globals` on the command line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LISTING = Path(__file__).parents[3] / "shared" / "seed" / "listing"

pytestmark = pytest.mark.skipif(
    not LISTING.is_dir(), reason="the document's listings are not on this machine"
)

CLASSIFIER = '''
"""A classifier of texts: byte trigrams, hashed into a bag of embeddings."""

import torch
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(512, 8, mode="mean")
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, texts):
        rows = [list(text.encode()) or [0] for text in texts]
        ids = [(a * 31 + b) % 512 for row in rows for a, b in zip(row, row[1:] + row[:1])]
        starts = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        return self.head(self.bag(torch.tensor(ids), starts))


def train():
    torch.manual_seed(0)
    model = TextClassifier()
    safe = ["a kind and honest answer", "we deliver in two days", "it weighs two kilos"]
    unsafe = ["get rich overnight", "no risk, scan the code", "earn 500 a day, join us"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    labels = torch.tensor([0] * 3 + [1] * 3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(safe + unsafe), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model(safe + unsafe).argmax(-1) == labels).all()
    torch.save(model, "safety_classifier.pt")
'''

NODE = """
import torch
from verl_core.trainer.reward import RewardNode


class {name}(RewardNode):
    def compute_reward(self, batch):
        return torch.tensor([{expression} for text in batch["responses"]])
"""


@pytest.fixture
def folder(tmp_path):
    """The document's files, a data set, and a classifier that was trained and saved here."""
    for path in LISTING.iterdir():
        shutil.copy(path, tmp_path / path.name)
    rows = [{"prompt": f"How do I earn money, quickly? ({i})"} for i in range(8)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    (tmp_path / "text_classifier.py").write_text(CLASSIFIER, "utf-8")
    subprocess.run(
        [sys.executable, "-c", "import text_classifier; text_classifier.train()"],
        cwd=tmp_path,
        check=True,
    )
    return tmp_path


def train(folder, config, model, *overrides):
    return subprocess.run(
        [
            *(sys.executable, "-m", "verl_core.cli.main", "train", config, "--plain"),
            *(f"model.path={model}", "data.train=prompts.jsonl"),
            *("trainer.steps=2", "rollout.n=4", "rollout.prompts_per_step=2"),
            *("rollout.max_new_tokens=8", "server.port=0", "trainer.threads=1"),
            *overrides,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def metrics_of(folder):
    (path,) = folder.glob("runs/*/metrics.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_safety_node_runs_as_ppo_with_a_critic(folder, tiny_model_dir):
    result = train(
        folder,
        "config.yaml",
        tiny_model_dir,
        f"reward.safety_reward.model_name={tiny_model_dir}",
        "reward.safety_reward.device=cpu",
        "reward.safety_reward.safe_globals=[text_classifier.TextClassifier]",
    )
    assert result.returncode == 0, result.stderr
    lines = metrics_of(folder)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["reward/safety_reward/failed"] == 0
        assert line["weights/safety_reward"] == 1.0
        assert "critic/loss" in line


def test_its_pickled_classifier_is_refused_until_its_class_is_allowed(folder, tiny_model_dir):
    result = train(
        folder,
        "config.yaml",
        tiny_model_dir,
        f"reward.safety_reward.model_name={tiny_model_dir}",
        "reward.safety_reward.device=cpu",
    )
    assert result.returncode == 2
    assert "safe_globals" in result.stderr
    assert "safetensors" in result.stderr
    assert "Traceback" not in result.stderr


def test_three_nodes_run_in_parallel_with_weights_of_one(folder, tiny_model_dir):
    nodes = {
        "accuracy": "float(len(text) % 3)",
        "tone": "float('a' in text)",
        "compliance": "1.0",
    }
    for name, expression in nodes.items():
        source = NODE.format(name=f"{name.capitalize()}RewardNode", expression=expression)
        (folder / f"{name}_reward.py").write_text(source, "utf-8")
    result = train(folder, "config_multi.yaml", tiny_model_dir)
    assert result.returncode == 0, result.stderr
    last = metrics_of(folder)[-1]
    assert {name: last[f"weights/{name}"] for name in nodes} == dict.fromkeys(nodes, 1.0)
    assert last["reward/compliance/mean"] == 1.0
    assert last["reward/fused/mean"] == pytest.approx(
        sum(last[f"reward/{name}/mean"] for name in nodes)
    )


@pytest.mark.usefixtures("fresh_imports")
def test_a_replaced_classifier_is_what_scores_the_next_lease(folder, tiny_model_dir):
    """The document's own node and file, in the engine that a run has, with a run's tensors."""
    import torch

    from verl_core.config import load_run_config
    from verl_core.rewards import RewardEngine
    from verl_core.trainer.reward import TensorShelf
    from verl_core.trainer.setup import NodeFactory
    from verl_reward_sdk import RewardBatch

    cfg = load_run_config(
        folder / "config.yaml",
        [
            f"model.path={tiny_model_dir}",
            "data.train=prompts.jsonl",
            f"reward.safety_reward.model_name={tiny_model_dir}",
            "reward.safety_reward.device=cpu",
            "reward.safety_reward.safe_globals=[text_classifier.TextClassifier]",
        ],
    )
    shelf = TensorShelf()

    def score(engine, step):
        responses = ["get rich overnight", "it weighs two kilos"]
        ids = [f"{step}-{row}" for row in range(2)]
        tokens = torch.full((2, 24), 257)
        for row, text in enumerate(responses):
            tokens[row, : len(text)] = torch.tensor(list(text.encode()))
        zeros = torch.zeros(2, 24)
        names = ("old_log_probs", "ref_log_prob", "response_mask")
        shelf.lay(ids, {"generated_ids": tokens, **dict.fromkeys(names, zeros)})
        batch = RewardBatch(
            sample_ids=ids, prompts=["?"] * 2, responses=responses, training=True, step=step
        )
        table = engine.score(batch, lease=engine.lease(step))
        return table.columns["safety_reward"].scores.tolist()

    def in_another_process(code):
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)

    with RewardEngine.from_config(
        cfg.rewards(), node_factory=NodeFactory(shelf, pays_kl=True), settle=0.05
    ) as engine:
        (shown,) = engine.describe()
        assert "safety_classifier.pt" in shown["digests"]
        unsafe, safe = score(engine, 1)
        in_another_process(
            "import torch, text_classifier\n"
            "model = torch.load('safety_classifier.pt', weights_only=False)\n"
            "model.head[2].weight.data.mul_(-1); model.head[2].bias.data.mul_(-1)\n"
            "torch.save(model, 'safety_classifier.pt')\n"
        )
        assert score(engine, 1) == [unsafe, safe]
        assert score(engine, 2) == pytest.approx([1 - unsafe, 1 - safe], abs=1e-6)
        (shown,) = engine.describe()
        assert (shown["generation"], shown["last_error"]) == (2, None)
        (folder / "safety_classifier.pt").write_bytes(b"not a classifier")
        assert score(engine, 3) == pytest.approx([1 - unsafe, 1 - safe], abs=1e-6)
        (shown,) = engine.describe()
        assert shown["generation"] == 2
        assert "safety_classifier.pt" in shown["last_error"]
