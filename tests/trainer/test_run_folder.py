"""A run's folder: never shared by two runs, found again, its state whole at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from verl_core.trainer.run_folder import STATE, RunFolder, held_out_prompts, read_state
from verl_reward_sdk import ConfigError


def test_runs_of_one_name_get_folders_and_ids_of_their_own(tmp_path):
    made = [RunFolder.create(tmp_path / "runs", "shop") for _ in range(3)]
    assert [folder.path.name for folder in made] == ["shop", "shop-2", "shop-3"]
    assert len({folder.run_id for folder in made}) == 3
    assert all(folder.path.is_absolute() for folder in made)


def test_two_processes_that_start_at_once_never_share_a_folder(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from verl_core.trainer.run_folder import RunFolder\n"
        "for _ in range(20): print(RunFolder.create(Path(sys.argv[1]), 'shop').path.name)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    names = [name for process in processes for name in process.communicate()[0].split()]
    assert len(names) == len(set(names)) == 40


def test_an_opened_folder_keeps_the_id_that_clients_know(tmp_path):
    made = RunFolder.create(tmp_path, "shop")
    assert RunFolder.open(made.path).run_id == made.run_id


def test_the_newest_is_the_one_of_that_name_that_started_last_and_has_a_checkpoint(tmp_path):
    runs = (("shop", "01-02"), ("shop", "01-03"), ("other", "01-09"), ("shop", "01-10"))
    for name, day in runs:
        folder = RunFolder.create(tmp_path, name)
        folder.note(started=f"2026-{day}")
        if day != "01-10":  # that one was given up before its first checkpoint
            whole = folder.path / "checkpoints" / "step_000001"
            whole.mkdir(parents=True)
            (whole / "trainer.json").write_text("{}", "utf-8")
    assert RunFolder.newest(tmp_path, "shop").path.name == "shop-2"


def test_facts_are_merged_and_the_file_is_replaced_in_one_step(tmp_path):
    folder = RunFolder.create(tmp_path, "shop")
    folder.note(status="running", step=3)
    with (folder.path / STATE).open(encoding="utf-8") as opened:
        folder.note(step=4)
        assert json.load(opened)["step"] == 3  # a reader sees one state whole, never half of two
    state = json.loads((folder.path / STATE).read_text("utf-8"))
    assert (state["run_id"], state["status"], state["step"]) == (folder.run_id, "running", 4)
    assert [path.name for path in folder.path.iterdir()] == [STATE]


HOLD = """
import sys
from pathlib import Path
from verl_core.trainer.run_folder import RunFolder
with RunFolder.open(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_which_a_process_trains_is_refused_until_that_ends_however_it_ends(tmp_path):
    folder = RunFolder.create(tmp_path, "shop")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        for attempt in (folder.refuse_if_running, folder.held().__enter__):
            with pytest.raises(ConfigError, match="is still running") as caught:
                attempt()
            assert f"(process {holder.pid})" in str(caught.value)
            assert f"kill {holder.pid}" in str(caught.value)
        holder.kill()
    folder.refuse_if_running()
    with folder.held():
        assert folder.state()["pid"] == os.getpid()


def test_one_process_does_not_train_twice_in_a_folder_either(tmp_path):
    folder = RunFolder.create(tmp_path, "shop")
    with folder.held(), pytest.raises(ConfigError, match="is still running"):
        RunFolder.open(folder.path).refuse_if_running()
    folder.refuse_if_running()


def test_the_held_out_prompts_of_a_run_are_those_of_its_config_while_they_are_there(tmp_path):
    assert held_out_prompts(tmp_path) == (None, "prompt")
    file = tmp_path / "heldout.jsonl"
    config = f"data: {{eval: {file}, prompt_key: question}}\n"
    (tmp_path / "config.yaml").write_text(config, "utf-8")
    assert held_out_prompts(tmp_path) == (None, "question")
    file.write_text("", "utf-8")
    assert held_out_prompts(tmp_path) == (file, "question")


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "a torn state"])
def test_what_is_no_runs_folder_is_refused_by_name(tmp_path, what):
    path = tmp_path / "shop"
    if what == "a file":
        path.write_text("", "utf-8")
    elif what != "nothing":
        path.mkdir()
        (path / STATE).write_text('{"run_id": "x', "utf-8") if what == "a torn state" else None
    assert read_state(path) == {}
    with pytest.raises(ConfigError, match="is no run's folder") as caught:
        RunFolder.open(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("there", [False, True])
def test_nothing_to_resume_names_the_run_and_where_was_looked(tmp_path, there):
    if there:
        RunFolder.create(tmp_path / "runs", "shop")
    with pytest.raises(
        ConfigError, match="there is no run named 'shp' with a complete checkpoint under"
    ) as caught:
        RunFolder.newest(tmp_path / "runs", "shp")
    assert "--resume DIR" in str(caught.value)
