"""A model's files are replaced by bad ones: none of them reaches a score (rows 2-9, 25, 26, 28)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tracemalloc

import pytest
from safetensors.numpy import load_file, save

from verl_reward_sdk import ConfigError, ProviderError


def replace(path, content):
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


@pytest.fixture
def model(reloading):
    return reloading.model()


@pytest.fixture
def mount(reloading):
    def of(**kwargs):
        kwargs = {"model": "model", **kwargs}
        return reloading.mount(plugin="strict", init_kwargs=kwargs, execution="inline")

    return of


@pytest.fixture
def one(reloading, model, mount):
    return reloading.engine(mount())


@pytest.fixture
def scores(kit):
    def of(engine):
        return engine.score(kit.batch(4)).columns["n"].scores.tolist()

    return of


def refused(engine, scores, shown, why):
    """The old generation scores on, and `last_error` says why."""
    before = scores(engine)
    after = scores(engine)
    found = shown(engine)
    assert before == after
    assert found["generation"] == 1
    assert found["state"] == "ready"
    assert re.search(why, found["last_error"]), found["last_error"]
    assert "model" in found["last_error"]
    assert ".cache" not in found["last_error"]


def test_new_weights_are_scored_with(reloading, one, scores, shown):
    before = scores(one)
    reloading.model(seed=1)
    assert scores(one) != before
    assert shown(one)["generation"] == 2


def test_truncated(one, model, scores, shown):
    file = model / "model.safetensors"
    replace(file, file.read_bytes()[:-100])
    refused(one, scores, shown, "SafetensorError")


@pytest.mark.parametrize("manifest", ["model.safetensors.sha256", "SHA256SUMS"])
def test_one_flipped_bit_against_a_manifest(reloading, model, mount, scores, shown, manifest):
    file = model / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (model / manifest).write_text(f"{digest}  model.safetensors\n")
    engine = reloading.engine(mount())
    flipped = bytearray(file.read_bytes())
    flipped[-1] ^= 1
    replace(file, bytes(flipped))
    refused(engine, scores, shown, rf"{digest[:12]}.*")
    new = hashlib.sha256(bytes(flipped)).hexdigest()
    (model / manifest).write_text(f"{new}  model.safetensors\n")
    scores(engine)
    assert shown(engine)["generation"] == 2  # the manifest follows: now it may


@pytest.mark.parametrize(
    "content", [b"", b"garbage" * 100, struct.pack("<Q", 2**62) + b"{}", b"\xff" * 8]
)
def test_empty_garbage_or_a_huge_header(one, model, scores, shown, content):
    tracemalloc.start()
    replace(model / "model.safetensors", content)
    refused(one, scores, shown, "SafetensorError")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_another_shape(reloading, one, scores, shown):
    reloading.model(hidden=16, write=("model.safetensors",))
    refused(one, scores, shown, r"embed.weight: \[256, 16\], expected \[256, 8\]")


def test_a_missing_head_is_never_made_up(reloading, one, scores, shown):
    reloading.model(drop=("head.weight",))
    refused(one, scores, shown, "head.weight: None")


def test_a_weight_nobody_expects(reloading, one, scores, shown):
    reloading.model(rename={"head.weight": "score.weight"})
    refused(one, scores, shown, "head.weight: None")


def test_reordered_labels(reloading, one, scores, shown):
    reloading.model(labels=("unsafe", "safe"))
    refused(one, scores, shown, r"labels are \[unsafe, safe\], and were \[safe, unsafe\]")


def test_reordered_labels_that_the_config_declares(reloading, model, mount, scores, shown):
    engine = reloading.engine(mount(labels=["safe", "unsafe"]))
    before = scores(engine)
    weights = load_file(model / "model.safetensors")
    weights["head.weight"] = weights["head.weight"][::-1].copy()
    reloading.model(labels=("unsafe", "safe"), write=("config.json",))
    replace(model / "model.safetensors", save(weights))
    assert scores(engine) == pytest.approx(before)
    assert shown(engine)["generation"] >= 2
    assert shown(engine)["last_error"] is None


def test_nan_weights(reloading, one, scores, shown):
    reloading.model(nan=True)
    refused(one, scores, shown, "(?i)nan")


def test_a_new_config_beside_old_weights(reloading, one, scores, shown):
    reloading.model(hidden=16, write=("config.json",))
    refused(one, scores, shown, "expected")
    reloading.model(hidden=16)
    scores(one)
    assert shown(one)["generation"] == 2


def test_out_of_memory(reloading, score, shown):
    reloading.write(1)
    engine = reloading.engine(reloading.mount())
    reloading.write("memory")
    assert score(engine) == 1
    assert "MemoryError" in shown(engine)["last_error"]


def test_the_source_is_truncated_after_the_load(reloading, model, mount, scores):
    """The provider reads its weights out of a memory map with every call."""
    engine = reloading.engine(mount(lazy=True))
    before = scores(engine)
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(10)
    assert scores(engine) == before


@pytest.mark.parametrize("execution", ["inline", "thread", "process"])
def test_a_broken_file_at_the_start(reloading, model, mount, execution):
    file = model / "model.safetensors"
    replace(file, file.read_bytes()[:-100])
    engine = reloading.engine({**mount(), "execution": execution}, setup=False)
    with pytest.raises(ProviderError) as caught:
        engine.setup()
    said = str(caught.value)
    assert "mount 'n' (strict) cannot be loaded" in said
    assert str(model) in said
    assert "SafetensorError" in said
    assert ".cache" not in said


def test_a_file_that_is_not_what_its_manifest_says_at_the_start(reloading, model, mount):
    (model / "model.safetensors.sha256").write_text("0" * 64)
    engine = reloading.engine(mount(), setup=False)
    with pytest.raises(ProviderError, match=r"mount 'n'.*model.safetensors has the SHA-256"):
        engine.setup()


def test_a_policy_that_cannot_have_the_new_rules_refuses_them(reloading, kit, shown):
    """`product` needs scores of 0 to 1, and the range is in the rule file."""
    rules = reloading.folder / "n.txt"
    text = "score: {{base: 0.5, max: {}}}\nrules: [{{name: a, contains: zq, points: 0.1}}]\n"
    rules.write_text(text.format(1))
    engine = reloading.engine(
        {"type": "n", "plugin": "rules", "init_kwargs": {"rules": "n.txt"}},
        policy="product",
    )
    engine.score(kit.batch(2))
    rules.write_text(text.format(2))
    engine.score(kit.batch(2))
    found = shown(engine)
    assert found["generation"] == 1
    assert "product" in found["last_error"]
    rules.write_text(text.format(0.75))
    engine.score(kit.batch(2))
    assert shown(engine)["generation"] == 2


def test_an_error_of_a_rule_file_names_the_file_that_people_know(reloading, kit, shown):
    rules = reloading.folder / "n.txt"
    rules.write_text("rules: [{name: a, contains: zq, points: 0.1}]\n")
    engine = reloading.engine({"type": "n", "plugin": "rules", "init_kwargs": {"rules": "n.txt"}})
    rules.write_text("rules: [{name: a, contain: zq, points: 0.1}]\n")
    engine.score(kit.batch(2))
    assert f"{rules}:1:19: " in shown(engine)["last_error"]
    with pytest.raises(ConfigError, match=re.escape(f"{rules}:1:19: ")):
        reloading.engine({"type": "n", "plugin": "rules", "init_kwargs": {"rules": "n.txt"}})


def test_digests_are_those_of_sha256sum(reloading, one, model, shown, score):
    lines = "".join(
        f"{hashlib.sha256((model / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("config.json", "model.safetensors")
    )
    assert shown(one)["digests"] == {"model": hashlib.sha256(lines.encode()).hexdigest()}
    assert json.dumps(one.describe()[0])
