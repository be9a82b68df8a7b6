"""Where a run's folder cannot be made, and what is said of a folder that cannot be written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from verl_core.cli.main import main
from verl_core.config import load_run_config
from verl_core.trainer.finish import finish
from verl_core.trainer.output_folder import check_output
from verl_core.trainer.report import write_report
from verl_core.trainer.run_folder import RunFolder
from verl_core.trainer.setup import Session
from verl_core.trainer.train import train
from verl_reward_sdk import ConfigError, VerlRewardError


def a_file(folder):
    (folder / "out").write_text("x")
    return folder / "out"


def below_a_file(folder):
    return a_file(folder) / "runs"


def a_dangling_link(folder):
    (folder / "out").symlink_to("nowhere/x")
    return folder / "out"


def below_a_dangling_link(folder):
    return a_dangling_link(folder) / "runs"


def a_loop(folder):
    (folder / "out").symlink_to("out")
    return folder / "out"


def in_proc(folder):
    return "/proc/x"


def a_device(folder):
    return "/dev/null"


def too_long(folder):
    return folder / "new" / ("a" * 300)


PLACES = [
    a_file,
    below_a_file,
    a_dangling_link,
    below_a_dangling_link,
    a_loop,
    in_proc,
    a_device,
    too_long,
]


def listing(folder):
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("make", PLACES)
def test_a_folder_that_cannot_be_made_is_refused_at_its_place(tiny_run, make, capsys):
    """By ``train``, by ``--check``, and by ``serve``, which makes one too."""
    output = make(tiny_run.folder)
    tiny_run.config["output"] = str(output)
    path = str(tiny_run.write())
    [line] = [
        number
        for number, text in enumerate(tiny_run.write().read_text("utf-8").splitlines(), start=1)
        if text.startswith("output:")
    ]
    before = listing(tiny_run.folder)
    for command in (["train", path], ["train", path, "--check"], ["serve", path]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert f"run.yaml:{line}:9: output: nothing can be made in " in said
    assert listing(tiny_run.folder) == before


@pytest.mark.parametrize("make", [a_file, a_dangling_link, a_loop, in_proc, too_long])
def test_a_state_that_cannot_be_made_is_refused_as_the_option(tiny_run, make, capsys):
    state = make(tiny_run.folder)
    assert main(["serve", str(tiny_run.write()), "--state", str(state)]) == 2
    assert "--state: nothing can be made in " in capsys.readouterr().err


@pytest.mark.parametrize("output", ["out", "new/er/out", "link/out", "no/../../project/out"])
def test_a_check_leaves_nothing_behind(tmp_path, monkeypatch, output):
    here = tmp_path / "project"
    here.mkdir()
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    monkeypatch.chdir(here)
    before = listing(tmp_path)
    check_output(type(here)(output), "tiny")
    assert listing(tmp_path) == before


def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    (tmp_path / "out").mkdir(mode=0o555)
    if os.access(tmp_path / "out", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(ConfigError, match="Permission denied"):
        check_output(tmp_path / "out", "tiny")


LIMITED = """
import resource, signal, sys
from pathlib import Path
from verl_core.trainer.run_folder import RunFolder
from verl_reward_sdk import VerlRewardError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as a full disk: no file may grow
try:
    RunFolder.create(Path(sys.argv[1]), "shop")
except VerlRewardError as error:
    print(type(error).__name__, error)
"""


def test_a_folder_in_which_nothing_can_be_written_is_gone_again_and_named(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] != 0
    words = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    state = tmp_path / "shop" / "state.json"
    assert done.stdout == f"VerlRewardError {state} could not be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_folder_cannot_be_locked_is_not_resumed(tmp_path):
    folder = RunFolder.create(tmp_path, "shop")
    (folder.path / ".lock").mkdir()
    with pytest.raises(ConfigError, match="cannot be written to: Is a directory") as caught:
        folder.refuse_if_running()
    assert "shop" in str(caught.value)


# -- a disk that is full later: what is written then goes to /dev/full --


def full(path):
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/dev/full")


@pytest.fixture
def opened(tiny_run):
    cfg = load_run_config(tiny_run.write(), ["trainer.steps=1", "trainer.eval_before=false"])
    with Session(cfg, plain=True) as run:
        yield run


def test_an_evaluation_that_cannot_be_written_is_named_and_the_step_is_kept(opened):
    place = opened.folder.path / "eval" / "after.jsonl"
    full(place.with_name(".after.jsonl.draft"))
    with pytest.raises(VerlRewardError, match="No space left on device") as caught:
        train(opened)
    assert str(place) in str(caught.value)
    assert [path.name for path in (opened.folder.path / "checkpoints").iterdir()] == ["step_000001"]


@pytest.mark.parametrize("name", ["index.html", "report.json", "rewards.png"])
def test_a_report_that_cannot_be_written_is_named_and_no_half_of_it_is_left(opened, name):
    place = opened.folder.path / "report" / name
    full(place.with_name(f".{name}.draft"))
    outcome = train(opened)
    with pytest.raises(VerlRewardError, match="No space left on device") as caught:
        finish(opened, outcome, again="again")
    assert str(place) in str(caught.value)
    assert not place.exists()
    assert write_report(opened.folder.path).is_file()


def test_a_model_that_cannot_be_written_is_named(opened):
    place = opened.folder.path / "model"
    full(place / "tokenizer.json")
    outcome = train(opened)
    with pytest.raises(VerlRewardError, match="could not be written") as caught:
        finish(opened, outcome, again="again")
    assert str(place) in str(caught.value)
