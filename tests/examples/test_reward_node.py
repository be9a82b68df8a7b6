"""The example of a reward node: its classifier, its files, and PPO with it on the tiny model."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "reward-node"
PLAIN = ["Bring your card with you.", "You can pay us next week.", "Ask us if you are not sure."]
OFFICE = [
    "The card is to be presented upon request of the competent authority.",
    "Payment shall be effected in the course of the following week.",
    "In the event of uncertainty, enquiry is advised.",
]


def rows(name):
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


@pytest.fixture
def plain_words(monkeypatch):
    """The example's module; the weights are opened from the config's folder, as in a run."""
    spec = importlib.util.spec_from_file_location("plain_words", FOLDER / "plain_words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(FOLDER)
    return module


def test_the_classifier_that_is_shipped_tells_sentences_apart_that_it_has_not_seen(plain_words):
    classifier = plain_words.PlainWordsNode().classifier
    assert all(logit > 0 for logit in classifier(PLAIN).tolist())
    assert all(logit < 0 for logit in classifier(OFFICE).tolist())
    assert math.isfinite(float(classifier([""])))


def test_the_script_trains_a_classifier_as_good_as_the_one_that_is_shipped(plain_words, tmp_path):
    out = tmp_path / "again.safetensors"
    script = [sys.executable, str(FOLDER / "train_classifier.py"), "--out", str(out)]
    said = subprocess.run(script, check=True, capture_output=True, text=True, timeout=60).stdout
    assert int(said.split("%")[0].split()[-1]) >= 75
    again = plain_words.PlainWordsNode(weights=str(out)).classifier
    assert all(logit > 0 for logit in again(PLAIN).tolist())
    assert all(logit < 0 for logit in again(OFFICE).tolist())


def test_weights_of_another_classifier_are_refused(plain_words, tmp_path):
    from safetensors.torch import save_file

    state = plain_words.PlainWords(width=4).state_dict()
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(RuntimeError, match="size mismatch"):
        plain_words.PlainWordsNode(weights=str(tmp_path / "other.safetensors"))


def test_the_data_are_questions_behind_the_facts_that_answer_them():
    train, held_out = rows("prompts.jsonl"), rows("heldout.jsonl")
    assert (len(train), len(held_out)) == (36, 40)
    assert len({row["id"] for row in train + held_out}) == 76
    for row in train + held_out:
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert len({row["prompt"][0]["content"] for row in train + held_out}) == 1
    asked = [[row["prompt"][1]["content"] for row in part] for part in (train, held_out)]
    assert all(text.endswith("?") for part in asked for text in part)
    assert len(set(asked[0] + asked[1])) == 76
    # Both questions about a fact begin with its first sentence.
    facts = [{text.split(". ")[0] for text in part} for part in asked]
    assert (len(facts[0]), len(facts[1])) == (18, 20)
    assert not facts[0] & facts[1]


def test_the_example_trains_with_a_critic_from_its_own_folder(tiny_run, tiny_model_dir, read_jsonl):
    """The command of its README, in a copy of the folder, on the tiny model."""
    example = tiny_run.folder / "reward-node"
    shutil.copytree(FOLDER, example)
    settings = {
        "model.path": tiny_model_dir,
        "trainer.steps": 2,
        "rollout.prompts_per_step": 2,
        "rollout.max_new_tokens": 8,
        "rollout.dtype": "float32",
        "server.port": 0,
        "tracking.tensorboard": "false",
    }
    result = subprocess.run(
        [
            *(sys.executable, "-m", "verl_core.cli.main", "train", "reward-node/run.yaml"),
            *("--plain", *(f"{key}={value}" for key, value in settings.items())),
        ],
        cwd=tiny_run.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=tiny_run.environment(),
    )
    assert result.returncode == 0, result.stderr
    folder = tiny_run.folder / "runs" / "plain-words"
    first, second = read_jsonl(folder / "metrics.jsonl")
    for line in (first, second):
        assert line["reward/plain_words/failed"] == 0
        assert line["weights/plain_words"] == 2.0
        assert line["weights/finished"] == 0.5
        assert line["critic/grad_norm"] > 0
    assert first["actor/kl"] == pytest.approx(0.0, abs=1e-5)
    assert second["actor/kl"] > 0
    assert len(read_jsonl(folder / "eval" / "after.jsonl")) == 40
