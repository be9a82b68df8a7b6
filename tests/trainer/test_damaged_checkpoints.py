"""Whatever happens to a checkpoint's files shows, and the newest whole one before it is taken."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from verl_core.trainer import checkpoint, seal
from verl_core.trainer.checkpoint import Checkpoint, CheckpointError

OURS = {"files", "sha256", "mark"}


@pytest.fixture
def save(tiny_models, tmp_path):
    """``save(step, keep=2)`` into a run's folder, which is `save.folder`."""
    models = tiny_models()

    def write(step, keep=2):
        return checkpoint.save(
            write.folder,
            step,
            policy=models.policy,
            tokenizer=models.tokenizer,
            objects={"optimizer": {"x": torch.arange(4000)}, "rewards": {"a": 1}},
            info={"run_id": "r1", "autocast": "none"},
            keep=keep,
        )

    write.folder = tmp_path / "run"
    write.folder.mkdir()
    return write


def flip(path, place):
    """Turn a bit over at `place` (a share) of a file, whose times stay as they were, as on a disk
    that rots."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0x40
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_every_file_is_listed_with_the_digest_that_sha256sum_gives(save):
    saved = save(1)
    facts = json.loads((saved.path / "trainer.json").read_text("utf-8"))
    there = {p.relative_to(saved.path).as_posix() for p in saved.path.rglob("*") if p.is_file()}
    assert facts["sha256"].keys() == facts["files"].keys() == there - {"trainer.json"}
    for name, digest in facts["sha256"].items():
        assert digest == hashlib.sha256((saved.path / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("place", [0, 0.5, 1])
@pytest.mark.parametrize(
    "name",
    [
        "policy/model.safetensors",
        "policy/config.json",
        "policy/tokenizer.json",
        "optimizer.pt",
        "rewards.pt",
        "trainer.json",
    ],
)
def test_one_bit_of_any_file_is_seen_named_and_passed_over(save, name, place):
    save(1)
    newest = save(2)
    assert checkpoint.latest(save.folder) == newest
    flip(newest.path / name, place)
    told = []
    assert checkpoint.latest(save.folder, told.append).step == 1
    assert len(told) == 1
    assert f"step_000002 is damaged: {name}" in told[0]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("[]", "cannot be read"),
        ("{}", "does not say step"),
        ("{" + '"a":{' * 5000, "cannot be read"),
        ('{"step": 2}', "does not say autocast"),
        ('{"step": "2", "autocast": "none"}', "does not say step"),
        ('{"step": 3, "autocast": "none"}', "is of step 3"),
        ('{"step": 2, "autocast": "none", "files": ["optimizer.pt"]}', "no list of its files"),
        ('{"step": 2, "autocast": "none", "files": {"a\\u0000b": 3}}', "cannot be there"),
        ('{"step": 2, "autocast": "none", "files": {"\\ud800": 3}}', "cannot be there"),
        ('{"step": 2, "autocast": "none", "files": {"optimizer.pt": "x"}}', "and had 'x'"),
        ('{"step": 2, "autocast": "none", "files": {"policy": 3}}', "policy has"),
        ('{"step": 2, "autocast": "none", "sha256": {"x": "y"}}', "is not as it was written"),
    ],
)
def test_an_odd_trainer_json_is_damage_too(save, facts, words):
    save(1)
    newest = save(2)
    (newest.path / "trainer.json").write_text(facts, "utf-8")
    assert words in newest.damage()
    told = []
    assert checkpoint.latest(save.folder, told.append).step == 1
    told[0].encode("utf-8")  # can be printed, whatever a file is named there


def test_a_copy_under_another_steps_name_is_no_checkpoint_of_that_step(save):
    saved = save(2)
    shutil.copytree(saved.path, saved.path.with_name("step_000009"))
    assert checkpoint.latest(save.folder, lambda said: None) == saved


def test_one_from_before_digests_were_listed_is_taken_by_its_sizes(save):
    saved = save(2)
    path = saved.path / "trainer.json"
    facts = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({k: facts[k] for k in facts.keys() - {"sha256", "mark"}}), "utf-8")
    assert checkpoint.latest(save.folder) == saved
    assert not OURS & saved.info().keys()
    (saved.path / "rewards.pt").write_bytes(b"")
    assert "rewards.pt has 0 bytes" in saved.damage()


def test_a_file_of_an_old_one_that_torch_cannot_read_is_named_with_a_way_out(save):
    saved = save(2)
    size = (saved.path / "optimizer.pt").stat().st_size
    (saved.path / "optimizer.pt").write_bytes(bytes(size))
    with pytest.raises(CheckpointError, match=r"optimizer\.pt cannot be read: .*remove step_00"):
        saved.load("optimizer")


def test_a_damaged_one_of_equal_size_takes_no_place_of_a_whole_one_and_is_written_anew(save):
    save(1)
    damaged = save(2)
    flip(damaged.path / "rewards.pt", 0.5)
    assert not checkpoint.holds(save.folder, 2)
    save(3)
    assert [one.step for one in checkpoint.checkpoints(save.folder)] == [1, 3]
    flip(Checkpoint(damaged.path.with_name("step_000003"), 3).path / "rewards.pt", 0.5)
    assert save(3).damage() is None


def test_a_file_is_read_once_as_long_as_nobody_touches_it(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"one")
    hour_ago = path.stat().st_mtime_ns - 3600 * 10**9
    os.utime(path, ns=(hour_ago, hour_ago))
    first = seal.digest(path)
    assert first == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"two")
    os.utime(path, ns=(hour_ago, hour_ago))  # its change time still tells
    assert seal.digest(path) == hashlib.sha256(b"two").hexdigest()


def test_resume_passes_a_damaged_model_over_and_ends_in_the_same_bits(tiny_run):
    folder = tiny_run.train("trainer.steps=2")
    tiny_run.train("trainer.steps=3", resume=folder)
    model = folder / "checkpoints/step_000003/policy/model.safetensors"
    before = load_file(model)
    before = {name: tensor.clone() for name, tensor in before.items()}
    data = bytearray(model.read_bytes())
    start = len(data) // 3
    data[start:] = bytes(len(data) - start)
    model.write_bytes(data)
    result = tiny_run.run("--resume", str(folder), "trainer.steps=3")
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "step_000003 is damaged: policy/model.safetensors has as many bytes" in said
    assert "resuming tiny after step 2" in said
    after = load_file(model)
    assert all(torch.equal(after[name], before[name]) for name in before)
