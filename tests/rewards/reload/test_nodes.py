"""RewardNodes of the seed document: the files that they open are their assets."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_core.trainer.node_assets import opened_files, paths_among
from verl_core.trainer.reward import TensorShelf
from verl_core.trainer.setup import NodeFactory
from verl_reward_sdk import ConfigError

NODE = """
import json
import torch
from verl_core.trainer.reward import RewardNode


class WeighedRewardNode(RewardNode):
    def __init__(self, table=None):
        self.weights = torch.load("weights.pt")
        with open("log.txt", "a") as log:
            log.write("built\\n")
        self.add = 0.0 if table is None else json.load(open(table))["add"]

    def compute_reward(self, batch):
        scores = self.weights[batch["generated_ids"]].sum(dim=-1) + self.add
        if (scores > 1000).any():
            raise ValueError("over a thousand")
        return scores
"""

pytestmark = [
    pytest.mark.usefixtures("fresh_imports"),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


def save(folder, value, size=4):
    torch.save(torch.full((size,), float(value)), folder / "draft.pt")
    os.replace(folder / "draft.pt", folder / "weights.pt")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "weighed_reward.py").write_text(NODE)
    save(tmp_path, 1)
    return tmp_path


@pytest.fixture
def shelf():
    return TensorShelf()


@pytest.fixture
def build(folder, shelf):
    made = []

    def of(**keys):
        mount = MountConfig(
            type="custom", name="n", node_class="weighed_reward.WeighedRewardNode", **keys
        )
        made.append(
            RewardEngine.from_config(
                RewardsConfig(mounts=(mount,), base_dir=folder),
                node_factory=NodeFactory(shelf, pays_kl=True),
                settle=0.02,
            )
        )
        made[-1].setup()
        return made[-1]

    yield of
    for engine in made:
        engine.close()


@pytest.fixture
def step(kit, shelf):
    """Score two rows of a step: each has two tokens."""

    def of(engine, number, ids=(0, 1)):
        names = [f"{number}-{i}" for i in range(2)]
        batch = dataclasses.replace(kit.batch(2, step=number), sample_ids=names)
        shelf.lay(batch.sample_ids, {"generated_ids": torch.tensor([ids, ids])})
        table = engine.score(batch, lease=engine.lease(number))
        return table.columns["n"].scores.tolist()

    return of


def test_a_replaced_file_is_what_scores_the_next_lease(folder, build, step, shown):
    engine = build()
    assert set(shown(engine)["digests"]) == {"weights.pt"}  # not the log that it writes
    assert step(engine, 1) == [2, 2]
    save(folder, 3)
    assert step(engine, 1) == [2, 2]
    assert step(engine, 2) == [6, 6]
    assert shown(engine)["generation"] == 2
    assert (folder / "log.txt").read_text() == "built\n" * 2


def test_a_candidate_is_tried_on_the_rows_of_the_last_step(folder, build, step, shown):
    engine = build()
    assert step(engine, 1, ids=(2, 3)) == [2, 2]
    save(folder, 5, size=2)  # too short for the tokens of the last step
    assert step(engine, 2) == [2, 2]
    assert shown(engine)["generation"] == 1
    assert "index" in shown(engine)["last_error"]
    save(folder, 5000)
    assert step(engine, 3) == [2, 2]
    assert "over a thousand" in shown(engine)["last_error"]
    save(folder, 5)
    assert step(engine, 4) == [10, 10]
    assert shown(engine)["last_error"] is None


def test_a_broken_file_is_refused(folder, build, step, shown):
    engine = build()
    (folder / "weights.pt").write_bytes(b"broken")
    assert step(engine, 1) == [2, 2]
    assert "could not be built" in shown(engine)["last_error"]


def test_paths_among_its_arguments_and_watched_ones_are_its_assets(folder, build, step, shown):
    (folder / "table.json").write_text('{"add": 0.5}')
    (folder / "watched").mkdir()
    (folder / "watched" / "a.bin").write_bytes(b"1")
    engine = build(init_kwargs={"table": "table.json"}, watch=["watched"])
    assert set(shown(engine)["digests"]) == {"weights.pt", "table.json", "watched"}
    assert step(engine, 1) == [2.5, 2.5]
    (folder / "table.json").write_text('{"add": 1.5}')
    assert step(engine, 2) == [3.5, 3.5]
    (folder / "watched" / "b.bin").write_bytes(b"2")
    assert step(engine, 3) == [3.5, 3.5]
    assert shown(engine)["generation"] == 3


def test_its_changed_code_is_reported(folder, build, step, shown):
    engine = build()
    assert shown(engine)["code_changed"] is None
    (folder / "weighed_reward.py").write_text(NODE + "\n")
    assert step(engine, 1) == [2, 2]
    assert "weighed_reward.py was changed" in shown(engine)["code_changed"]


def test_a_node_is_never_built_in_the_background(build):
    with pytest.raises(ValueError, match="working directory"):
        build(reload="background")


def test_what_counts_as_opened(tmp_path):
    for name in ("read.txt", "written.txt", "module.py", "low.bin"):
        (tmp_path / name).write_text("x")
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("x")
    with opened_files(tmp_path) as found:
        (tmp_path / "read.txt").read_text()
        (tmp_path / "written.txt").write_text("y")
        (tmp_path / "module.py").read_text()
        outside.read_text()
        os.close(os.open(tmp_path / "low.bin", os.O_RDONLY))
    (tmp_path / "written.txt").read_text()
    assert list(found) == [tmp_path / "read.txt", tmp_path / "low.bin"]


def test_the_configs_own_folder_is_no_asset(tmp_path):
    (tmp_path / "model").mkdir()
    named = {"a": ".", "b": ["model", "cpu"], "c": str(tmp_path.parent), "d": "x" * 5000, "e": 1}
    assert paths_among(named, tmp_path) == [tmp_path / "model"]


def test_a_node_without_a_file_is_an_error_as_before(folder, build):
    (folder / "weights.pt").unlink()
    with pytest.raises(ConfigError, match="could not be built"):
        build()
