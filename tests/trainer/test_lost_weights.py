"""`weights.db` is lost between two parts of a run: its weights are not, and its revisions grow."""

from __future__ import annotations

import sqlite3

import pytest

from verl_core.config import load_run_config
from verl_core.rewards.persistence import RevisionLog
from verl_core.trainer import checkpoint, reward_state
from verl_core.trainer.setup import Session
from verl_core.trainer.train import save, train_step


@pytest.fixture
def changed(tiny_run):
    """The folder of a run of three steps whose weights were changed after each, with a checkpoint
    of step 2: step 3 was trained with revision 3, and revision 4 is the newest."""
    tiny_run.config["trainer"] |= {"eval_before": False, "eval_after": False}
    cfg = load_run_config(tiny_run.write())
    with Session(cfg, plain=True) as run:
        for step in (1, 2, 3):
            run.record(step, train_step(run, step))
            if step == 2:
                save(run, 2)
            run.engine.store.update({"style": step + 1.0}, author="li")
        return run.folder.path


def lose(folder):
    for path in folder.glob("weights.db*"):
        path.unlink()


def history(folder):
    log = RevisionLog(folder / "weights.db")
    entries = [record for record, _ in log.records(None)]
    log.close()
    return entries


def test_the_checkpoint_keeps_the_newest_revision_and_its_settings(changed):
    record = reward_state.weights(checkpoint.latest(changed))
    assert (record.revision, record.author, record.dials["style"].pin) == (2, "li", 2.0)


def test_a_lost_file_is_told_and_the_run_goes_on_with_the_checkpoints_weights(
    tiny_run, changed, read_jsonl
):
    lose(changed)
    result = tiny_run.run("--resume", str(changed))
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "warning: weights.db was lost: it holds no revision of this run" in said
    assert "revision 2 from the checkpoint of step 2, as revision 4" in said
    assert "what was changed after step 2 is gone" in said
    last = read_jsonl(changed / "metrics.jsonl")[-1]
    # Above 3, with which step 3 was trained before, though the checkpoint is of revision 2.
    assert (last["step"], last["weights/revision"], last["weights/style"]) == (3, 4.0, 2.0)
    [entry] = history(changed)
    assert (entry.revision, entry.author) == (4, "checkpoint")
    assert entry.reason.startswith("weights.db was lost")


def test_a_file_that_is_whole_is_not_spoken_of(tiny_run, changed, capsys, read_jsonl):
    tiny_run.train(resume=changed)
    assert "weights.db" not in capsys.readouterr().out
    last = read_jsonl(changed / "metrics.jsonl")[-1]
    assert (last["step"], last["weights/revision"], last["weights/style"]) == (3, 3.0, 3.0)


def test_a_checkpoint_from_before_weights_were_kept_says_that_it_has_none(
    tiny_run, changed, capsys, read_jsonl
):
    (checkpoint.latest(changed).path / "rewards.pt").unlink()
    trainer = changed / "checkpoints/step_000002/trainer.json"
    trainer.write_text('{"step": 2, "autocast": "none", "run_id": "r"}', "utf-8")
    lose(changed)
    tiny_run.train(resume=changed)
    assert "the checkpoint of step 2 keeps no weights" in " ".join(capsys.readouterr().out.split())
    last = read_jsonl(changed / "metrics.jsonl")[-1]
    assert (last["weights/revision"], last["weights/style"]) == (4.0, 1.0)


@pytest.mark.parametrize(
    "settings", ["[]", '{"style": 3}', '{"style": {"base": 1.0, "pin": "2"}}', "{"]
)
def test_a_damaged_file_ends_the_command_with_its_name_and_a_way_out_that_works(
    tiny_run, changed, settings
):
    with sqlite3.connect(changed / "weights.db") as file:
        file.execute("DROP TRIGGER revisions_are_final")
        file.execute("UPDATE revisions SET settings = ?", (settings,))
    file.close()
    result = tiny_run.run("--resume", str(changed))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    said = " ".join(result.stderr.split())
    assert "weights.db are damaged: revision 4 holds what is no weight" in said
    assert "move it away" in said
    lose(changed)
    tiny_run.train(resume=changed)
    assert history(changed)[-1].author == "checkpoint"
