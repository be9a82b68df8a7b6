"""What the tests of documents share: blocks of Markdown, and a checkout to run them in."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path("examples") / "customer-service"
DEFAULT_URL = "http://localhost:8000"
#: Settings that make any run a matter of a second.
SMALL = (
    "trainer.threads=1 data.eval_limit=2 rollout.n=2 rollout.prompts_per_step=1 "
    "rollout.max_new_tokens=4"
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^`([\w./-]+)`:\n\n\Z", re.MULTILINE)
_SHELL = {"|", "||", "&", "&&", ";", ">", ">>", "<", "<<"}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        place: ``README.md:12``, its first line.
        language: as written behind the fence.
        text: what stands in it.
        gap: the prose between the block before and this one.
        file: the file that it is, where the line above it names one.
    """

    place: str
    language: str
    text: str
    gap: str
    file: str | None

    def commands(self) -> list[list[str]]:
        """Its command lines as words, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        found = [shlex.split(line, comments=True) for line in lines]
        return [words for words in found if words]


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    blocks, end = [], 0
    for match in _FENCE.finditer(text):
        gap, end = text[end : match.start()], match.end()
        named = _FILE.search(gap)
        place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        blocks.append(Block(place, match[1], match[2], gap, named[1] if named else None))
    assert text.count("```") == 2 * len(blocks), f"{path}: a fence without its end, or indented"
    return blocks


def _is_excerpt(part: Any, whole: Any) -> bool:
    """Whether all of `part` stands in `whole`; of a list, some items in any order."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_excerpt(part[key], whole[key]) for key in part)
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(_is_excerpt(item, other) for other in whole) for item in part)
    return bool(part == whole)


class Serving:
    """A ``verl-reward serve`` process, ready for requests."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "verl_core.cli.main", "serve", *words, "server.port=0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:  # ends with the process at the latest
            said.append(line)
            found = re.search(r"is served at (http\S+)", line)
            if found:
                self.url = found[1]
                return
        pytest.fail("verl-reward serve ended:\n" + "".join(said))

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)
        return self.process.returncode


class Checkout:
    """A folder like a checkout, in which a document's blocks are run one after the other."""

    def __init__(self, folder: Path, model: Path, url: Callable[[], str], capture: Any) -> None:
        self.folder, self.model, self.url, self.capture = folder, model, url, capture
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name not in ("examples", "runs"):
                (folder / path.name).symlink_to(path)
        shutil.copytree(
            ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("runs")
        )
        self.config = folder / EXAMPLE / "run.yaml"
        self.place = ""
        self.has_trained = False

    def run(self, document: Path) -> None:
        """Write the files that a document names, then run all of its blocks."""
        blocks = blocks_of(document)
        own = self.folder / document.parent.relative_to(ROOT) / "run.yaml"
        self.config = own if own.exists() else self.folder / EXAMPLE / "run.yaml"
        for block in blocks:
            if block.file is not None:
                path = self.folder / block.file
                assert not path.exists(), f"{block.place}: {block.file} is in the checkout already"
                path.write_text(block.text, encoding="utf-8")
        for number, block in enumerate(blocks):
            self.place = block.place
            following = blocks[number + 1] if number + 1 < len(blocks) else None
            runner = getattr(self, f"block_{block.language}", None)
            if runner is None:
                pytest.fail(f"{block.place}: no test knows blocks of the language {block.language}")
            runner(block, following)

    # -- blocks ------------------------------------------------------------------------------

    def block_text(self, block: Block, following: Block | None) -> None:
        """Read by people, or compared by the block before."""

    def block_json(self, block: Block, following: Block | None) -> None:
        """One value, or one a line."""
        try:
            json.loads(block.text)
        except json.JSONDecodeError:
            assert all(json.loads(line) for line in block.text.splitlines()), block.place

    def block_python(self, block: Block, following: Block | None) -> None:
        if block.file is not None:
            compile(block.text, block.place, "exec")  # run by the YAML that names its class
            return
        said = self._process(sys.executable, "-c", block.text)
        if following and following.language == "text" and following.gap.strip() in ("", "prints"):
            assert said == following.text, block.place

    def block_yaml(self, block: Block, following: Block | None) -> None:
        """A run; a part, which is found in the example's run or checked in its place; or rules."""
        value = yaml.safe_load(block.text)
        if isinstance(value, list) or "rules" in value:
            self._rules(f"rules:\n{block.text}" if isinstance(value, list) else block.text)
            return
        path = self.folder / (block.file or "part.yaml")
        if block.file is None:
            whole = yaml.safe_load(self.config.read_text(encoding="utf-8"))
            if _is_excerpt(value, whole):
                return
            path = path if "reward" in value else self.config.with_name("part.yaml")
            data = {key: str(self.config.with_name(file)) for key, file in whole["data"].items()}
            text = yaml.safe_dump(whole | {"data": data} | value, sort_keys=False)
            path.write_text(text, encoding="utf-8")
        self.command_verl_reward("train", str(path), "--check")

    def _rules(self, text: str) -> None:
        from verl_reward_rules import Rules, RulesConfig

        path = self.folder / "some-rules.yaml"
        path.write_text(text, encoding="utf-8")
        Rules(RulesConfig(rules=path)).setup()

    def block_bash(self, block: Block, following: Block | None) -> None:
        for words in block.commands():
            name = words[0].removeprefix(".venv/bin/")
            runner = getattr(self, "command_" + name.replace("-", "_"), None)
            if runner is None or set(words) & _SHELL:
                pytest.fail(f"{block.place}: no test knows how to run {shlex.join(words)}")
            answer = runner(*words[1:])
            if words[0] == "curl":
                self._answered(answer, following)

    # -- commands ----------------------------------------------------------------------------

    def command_git(self, verb: str, address: str, folder: str) -> None:
        assert (verb, address, folder) == ("clone", "REPOSITORY", "verl-reward"), self.place

    def command_cd(self, folder: str) -> None:
        assert folder == "verl-reward", f"{self.place}: that is where git clone put it"

    def command_source(self, script: str) -> None:
        assert script == ".venv/bin/activate", self.place

    def command_make(self, *words: str) -> None:
        """The target, and the paths in ``ARGS``, exist; nothing is made."""
        self._process("make", "--dry-run", *words)
        for word in words:
            for argument in shlex.split(word.partition("=")[2]):
                assert "/" not in argument or (self.folder / argument).exists(), self.place

    def command_pip(self, verb: str, *words: str) -> None:
        """What is to be installed exists; nothing is installed."""
        assert verb == "install", self.place
        extras = importlib.metadata.metadata("verl-core").get_all("Provides-Extra") or []
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        for word in words:
            path, _, extra = word.partition("[")
            if word.startswith("."):
                assert (self.folder / path / "pyproject.toml").is_file(), f"{self.place}: {word}"
                assert not extra or set(extra.rstrip("]").split(",")) <= set(extras), word
            elif word not in ("-c", "-e", "--no-deps", "constraints.txt"):
                assert word in pins, f"{self.place}: {word} is not pinned in constraints.txt"

    def command_python(self, *words: str) -> None:
        self._process(sys.executable, *words)

    def command_curl(self, *words: str) -> dict[str, Any]:
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        assert any(word.startswith(DEFAULT_URL + "/") for word in words), self.place
        words = tuple(word.replace(DEFAULT_URL, self.url()) for word in words)
        answer: dict[str, Any] = json.loads(self._process("curl", "-sS", *words))
        return answer

    def _answered(self, answer: dict[str, Any], following: Block | None) -> None:
        """A refusal must be announced: the next block is the answer, but for the run's name."""
        told = json.loads(following.text) if following and following.language == "json" else None
        if told is None:
            assert "revision" in answer, f"{self.place}: {answer}"
        else:
            assert answer | {"run_id": ""} == told | {"run_id": ""}, self.place

    def command_verl_reward(self, *words: str) -> str:
        """Run in this process. A run that trains is made small, and after a document's first one
        the others are checked only, but for those that resume."""
        if words[0] == "serve":
            assert Serving(self.folder, words[1:]).stop() == 0, self.place
            return ""
        if words[0] == "weights":
            words = (*words, "--url", self.url())
        if words[0] == "train":
            words = (*words, f"model.path={self.model}", "server.port=0")
        if words[0] == "train" and "--check" not in words:
            steps = 2 if "--resume" in words else 1
            words = (*words, *SMALL.split(), f"trainer.steps={steps}")
            words = (*words, "--check") if self.has_trained and steps == 1 else words
            self.has_trained = True
        from verl_core.cli.main import main

        code = main(words)
        out, errors = self.capture.readouterr()
        assert code == 0, f"{self.place}: verl-reward {shlex.join(words)}\n{out}{errors}"
        return str(out)

    def _process(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        shown = f"{self.place}: {shlex.join(words)}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, shown
        return done.stdout


@pytest.fixture(name="blocks_of", scope="session")
def _blocks_of() -> Callable[[Path], list[Block]]:
    return blocks_of


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Gives the address of ``verl-reward serve`` with the example, started by the first asker."""
    folder = tmp_path_factory.mktemp("serve")
    started: list[Serving] = []

    def url() -> str:
        if not started:
            started.append(Serving(folder, [str(ROOT / EXAMPLE / "run.yaml")]))
        return started[0].url

    yield url
    for serving in started:
        serving.stop()


@pytest.fixture
def checkout(
    tmp_path: Path,
    tiny_model_dir: Path,
    control_plane: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Checkout:
    """A `Checkout` that is the current folder, with an environment of its own."""
    for variable in [name for name in os.environ if name.startswith("VERL_REWARD")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))  # a config's folder is appended to it
    folder = tmp_path / "verl-reward"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Checkout(folder, tiny_model_dir, control_plane, capsys)
