"""What a person can get wrong in ``verl-reward train``: it ends before anything is loaded, with one
message that names the place and the nearest right thing, and exit code 2."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from verl_core.cli.main import main

ROOT = Path(__file__).resolve().parents[2]

YAML = """\
name: tiny
model: {path: MODEL}
data: {train: prompts.jsonl}
reward:
  - {type: style, plugin: rules, init_kwargs: {rules: rules.yaml}}
  - {type: overlap, plugin: chrf, init_kwargs: {reference: ground_truth}}
  - {type: guard, plugin: safety, role: gate, penalty: -1.0, init_kwargs: {words: words.txt}}
server: {port: 0}
trainer: {steps: 1}
# the end
"""
ROW = json.dumps({"prompt": "Is it any good?", "ground_truth": "It is."}) + "\n"


class Project:
    """A run's folder, in which one thing is wrong, and what the command says about it."""

    def __init__(self, folder: Path, model: Path, monkeypatch, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.text = YAML.replace("MODEL", str(model))
        (folder / "prompts.jsonl").write_text(ROW * 3, "utf-8")
        (folder / "rules.yaml").write_text("rules: [{name: a, regex: a, points: 1}]\n", "utf-8")
        (folder / "words.txt").write_text("zq\n", "utf-8")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def put(self, old: str, new: str) -> None:
        assert old in self.text
        self.text = self.text.replace(old, new)

    def place(self, at: str) -> str:
        """``run.yaml:line:column`` of `at` in the YAML."""
        before = self.text[: self.text.index(at)]
        column = len(before) - (before.rfind("\n") + 1) + 1
        return f"run.yaml:{before.count(chr(10)) + 1}:{column}"

    def refused(self, *arguments: str) -> str:
        """The message of ``train run.yaml``, which is that of ``--check`` too."""
        (self.folder / "run.yaml").write_text(self.text, "utf-8")
        said = []
        for options in ((), ("--check",)):
            code = main(["train", "run.yaml", *arguments, *options])
            out, err = self.capsys.readouterr()
            said.append(self.judged(code, out, err))
        assert said[0] == said[1]
        return said[0]

    def refused_by_a_process(self, *command: str, **environment: str) -> str:
        (self.folder / "run.yaml").write_text(self.text, "utf-8")
        result = subprocess.run(
            [*(command or (sys.executable, "-m", "verl_core.cli.main")), "train", "run.yaml"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )
        return self.judged(result.returncode, result.stdout, result.stderr)

    def judged(self, code: int, out: str, err: str) -> str:
        """One message, nothing done: no traceback, no "loading models", no run's folder."""
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        assert "loading" not in err
        assert err.startswith("error: ")
        assert len(err.splitlines()) <= 2, err  # the message, and its hint
        assert not (self.folder / "runs").exists()
        return err.replace(f"{self.folder}/", "")


@pytest.fixture
def project(tmp_path, tiny_model_dir, monkeypatch, capsys, fresh_imports):
    return Project(tmp_path, tiny_model_dir, monkeypatch, capsys)


def test_the_yaml_without_a_mistake_passes_the_check(project, capsys):
    (project.folder / "run.yaml").write_text(project.text, "utf-8")
    assert main(["train", "run.yaml", "--check"]) == 0
    out, err = capsys.readouterr()
    assert "ok run.yaml" in " ".join(out.split()).replace(f"{project.folder}/", "")
    assert "3 prompts to train on, 0 held out" in out
    assert err == ""
    assert not (project.folder / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ("steps: 1", "stpes: 1", "stpes", ["trainer.stpes: unknown key", "did you mean 'steps'?"]),
        ("steps: 1", "steps: many", "many", ["trainer.steps: expected a whole number", "'many'"]),
        ("steps: 1", "steps: 0", "0}\n#", ["trainer.steps: must be at least 1, got 0"]),
        (
            "plugin: chrf",
            "plugin: chfr",
            "chfr",
            ["no plugin 'chfr' is installed", "did you mean 'chrf'?"],
        ),
        ("plugin: chrf", "plugin: judge", "judge", ["it will come with verl-reward-judge"]),
        ("plugin: chrf", "plugin: ter", "ter,", ["a later version of verl-reward-overlap"]),
        ("reference:", "refrence:", "refrence", ["unknown key", "did you mean 'reference'?"]),
        ("rules.yaml", "rule.yaml", "rule.yaml", ["no such file or folder: rule.yaml"]),
        ("penalty: -1.0, ", "", "{type: guard", ["the gate 'guard' has no penalty", "below 0"]),
        ("penalty: -1.0", "penalty: 1.0", "1.0", ["guard.penalty: must be less than 0, got 1"]),
        (
            "penalty: -1.0",
            "penalty: -1.0, weight: 2.5",
            "2.5",
            ["reward.guard.weight: a gate has no weight", "its penalty:"],
        ),
    ],
)
def test_a_mistake_in_the_yaml_is_told_with_line_and_column(project, old, new, at, words):
    project.put(old, new)
    message = project.refused()
    assert message.startswith(f"error: {project.place(at)}: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("reward.overlp.weight=2", ["no mount", "did you mean 'overlap'?"]),
        ("reward.guard.weight=2", ["a gate has no weight"]),
        ("reward.style.weight=-1", ["reward.style.weight: must be at least 0, got -1"]),
        ("trainer.stpes=2", ["unknown key", "did you mean 'steps'?"]),
        ("trainer.steps", ["cannot read 'trainer.steps'", "write key=value"]),
    ],
)
def test_a_mistake_on_the_command_line_is_told_with_its_number(project, override, words):
    message = project.refused("seed=1", override)
    assert message.startswith("error: override 2: ")
    for word in words:
        assert word in message


def test_a_column_that_no_row_has_is_told_with_the_mount_that_reads_it(project):
    project.put("reference: ground_truth", "reference: groundtruth")
    message = project.refused()
    assert message.startswith("error: prompts.jsonl:1: ")
    assert "no row has the column 'groundtruth', which 'overlap' reads" in message
    assert "did you mean 'ground_truth'?" in message


def test_a_row_without_a_column_that_the_others_have_is_told_with_its_line(project):
    (project.folder / "prompts.jsonl").write_text(ROW + '{"prompt": "Why?"}\n' + ROW, "utf-8")
    message = project.refused()
    assert message.startswith("error: prompts.jsonl:2: ")
    assert "the row has no column 'ground_truth', which 'overlap' reads" in message


def test_every_mistake_is_told_at_once_one_line_each(project):
    project.put("steps: 1", "stpes: 1")
    project.put("penalty: -1.0, ", "")
    (project.folder / "run.yaml").write_text(project.text, "utf-8")
    assert main(["train", "run.yaml"]) == 2
    err = project.capsys.readouterr().err
    assert project.place("stpes") in err
    assert project.place("{type: guard") in err
    assert "Traceback" not in err


def test_a_yaml_that_is_not_there_names_the_one_that_is(project):
    project.refused("seed=x")  # writes run.yaml
    assert main(["train", "rn.yaml"]) == 2
    err = project.capsys.readouterr().err.replace(f"{project.folder}/", "")
    assert "rn.yaml: no such file" in err
    assert "did you mean 'run.yaml'?" in err
    assert "Traceback" not in err


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "place", "words"),
    [
        (_folder, "prompts.jsonl", ["this is a folder, a file is needed"]),
        (Path.unlink, "prompts.jsonl", ["no such file"]),
        (lambda path: path.write_bytes(b""), "prompts.jsonl", ["the file is empty"]),
        (lambda path: path.write_bytes(b"\n \n"), "prompts.jsonl", ["the file is empty"]),
        (
            lambda path: path.write_bytes(ROW.encode() + b'{"prompt": "caf\xe9"}\n'),
            "prompts.jsonl:2:16",
            ["byte 0xe9 is not UTF-8", "save the file as UTF-8"],
        ),
        (
            lambda path: path.write_text(ROW + ROW + '{"prompt": "Why?",}\n', "utf-8"),
            "prompts.jsonl:3",
            ["not JSON"],
        ),
        (
            lambda path: path.write_text("[\n", "utf-8"),
            "prompts.jsonl:1",
            ["not JSON", "one array is not JSON lines"],
        ),
        (
            lambda path: path.write_text('{"prmpt": "Why?", "ground_truth": ""}\n', "utf-8"),
            "prompts.jsonl:1",
            ["the row has no 'prompt', which data.prompt_key names", "did you mean 'prmpt'?"],
        ),
        (
            lambda path: path.write_text(ROW + '{"prompt": " ", "ground_truth": ""}\n', "utf-8"),
            "prompts.jsonl:2",
            ["'prompt' is empty"],
        ),
    ],
)
def test_a_data_file_that_cannot_be_used_is_told_with_file_and_line(project, spoil, place, words):
    spoil(project.folder / "prompts.jsonl")
    message = project.refused()
    assert re.match(rf"error: {re.escape(place)}(:\d+)?: ", message), message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instrct", "did you mean 'HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("./nowhere", "neither a folder nor a hub id"),
        ("prompts.jsonl", "is a file"),
        ("cache", "does not hold a model"),
    ],
)
def test_a_model_that_is_neither_folder_nor_known_id_is_told_offline_too(project, model, words):
    (project.folder / "cache").mkdir()
    project.text = re.sub(r"model: \{path: .*\}", f"model: {{path: {model}}}", project.text)
    message = project.refused()
    assert message.startswith(f"error: {project.place(model)}: model.path: ")
    assert words in message


def test_a_port_that_is_taken_is_told_with_another_that_is_free(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        project.put("{port: 0}", f"{{port: {port}}}")
        message = project.refused()
        assert message == project.refused_by_a_process()
    assert message.startswith(f"error: {project.place(f'{port}}}')}: server.port: ")
    assert f"port {port} on 127.0.0.1 is taken" in message
    free = re.search(r"choose another with server\.port=(\d+)", message)
    assert free is not None
    assert int(free[1]) != port


def test_a_taken_port_that_nobody_wrote_is_told_as_the_default_without_a_line(project):
    project.put("server: {port: 0}\n", "")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else's, which is as good
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        message = project.refused()
    assert message.startswith("error: run.yaml: server.port (default 8000): port 8000 on 127.0.0.1")


TORCH_FREE = """
import sys
from verl_core.cli.main import main
code = main(["train", "run.yaml", *sys.argv[1:]])
assert not {"torch", "transformers"} & set(sys.modules), "torch was imported first"
sys.exit(code)
"""


@pytest.mark.parametrize("options", [(), ("--check",)])
@pytest.mark.parametrize("wrong", ["a key", "a plugin", "a row", "a model", "a port"])
def test_what_needs_no_torch_is_told_before_torch_is_imported(project, wrong, options):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        if wrong == "a row":
            (project.folder / "prompts.jsonl").write_text("{}\n", "utf-8")
        else:
            project.put(
                *{
                    "a key": ("steps: 1", "stpes: 1"),
                    "a plugin": ("plugin: chrf", "plugin: chfr"),
                    "a model": ("model: {path: ", "model: {path: ./no"),
                    "a port": ("{port: 0}", f"{{port: {port}}}"),
                }[wrong]
            )
        (project.folder / "run.yaml").write_text(project.text, "utf-8")
        result = subprocess.run(
            [sys.executable, "-c", TORCH_FREE, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    project.judged(result.returncode, result.stdout, result.stderr)


def test_lines_of_one_message_stand_below_each_other(project, capsys):
    (project.folder / "run.yaml").write_text(project.text, "utf-8")
    assert main(["train", "run.yaml", "trainer.stpes=2", "sed=1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: override 1: trainer.stpes: unknown key")
    assert second.startswith("       override 2: sed: unknown key")


def test_the_word_that_all_is_well_is_one_line_however_narrow_the_pipe(project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    (project.folder / "run.yaml").write_text(project.text, "utf-8")
    assert main(["train", "run.yaml", "--check"]) == 0
    first = project.capsys.readouterr().out.splitlines()[0]
    assert first.endswith("run.yaml: nothing is wrong that can be seen from here")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os.system", "but not a RewardNode"),
        ("pathlib.PurePath", "but not a RewardNode"),
        ("no_such_module.Node", "no module 'no_such_module'"),
        ("mine.TonNode", "did you mean 'ToneNode'?"),
    ],
)
def test_a_node_class_that_is_no_reward_node_is_refused_where_it_is_named(project, name, words):
    node = "from verl_core.trainer.reward import RewardNode\nclass ToneNode(RewardNode): pass\n"
    (project.folder / "mine.py").write_text(node, "utf-8")
    project.put("plugin: chrf, init_kwargs: {reference: ground_truth}", f"node_class: {name}")
    message = project.refused()
    assert message.startswith(f"error: {project.place(name)}: reward.overlap.node_class: ")
    assert words in message


def test_arguments_that_a_nodes_constructor_does_not_take_are_told_by_the_nearest(project):
    node = """
from verl_core.trainer.reward import RewardNode
class ToneNode(RewardNode):
    def __init__(self, weights, device="cpu"):
        raise SystemExit("it was constructed")
"""
    (project.folder / "mine.py").write_text(node, "utf-8")
    project.put("plugin: chrf, init_kwargs: {reference: ground_truth}", "node_class: mine.ToneNode")
    assert "it takes: weights, device" in project.refused()
    project.put("mine.ToneNode", "mine.ToneNode, init_kwargs: {weihgts: a}")
    message = project.refused()
    assert f"{project.place('init_kwargs: {weihgts')}: reward.overlap.init_kwargs: " in message
    assert "ToneNode takes no argument 'weihgts'" in message
    assert "did you mean 'weights'?" in message


def test_a_plugin_that_is_not_installed_is_told_with_the_distribution_that_brings_it(project):
    """A process that sees every installed distribution but ``verl-reward-overlap``."""
    site = project.folder / "site"
    site.mkdir()
    installed = {Path(str(d.locate_file(""))) for d in importlib.metadata.distributions()}
    for folder in installed:
        for entry in folder.iterdir():
            if "verl_reward_overlap" not in entry.name and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    (site / "rules").symlink_to(ROOT / "plugins/verl-reward-rules/src")
    sources = [site, ROOT, ROOT / "sdk/src", *ROOT.glob("plugins/verl-reward-[!o]*/src")]
    # -S: no .pth file of the environment brings the sources of the missing plugin back.
    command = (sys.executable, "-S", "-m", "verl_core.cli.main")
    path = os.pathsep.join(map(str, sources))
    message = project.refused_by_a_process(*command, PYTHONPATH=path)
    assert message.startswith(f"error: {project.place('chrf')}: reward.overlap.plugin: ")
    assert "it comes with verl-reward-overlap: pip install" in message
    assert "plugins/verl-reward-overlap" in message
