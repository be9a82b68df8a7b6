"""What the tests of documents share: a checkout to run their blocks in."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml


def _beside(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"docs_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


blocks, elsewhere = _beside("blocks"), _beside("elsewhere")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path("examples") / "customer-service"
DEFAULT_URL = "http://localhost:8000"
#: Of examples/openrlhf/serve.py.
OPENRLHF_URL = "http://127.0.0.1:5000"
#: Settings that make any run a matter of a second.
SMALL = (
    "trainer.threads=1 data.eval_limit=2 rollout.n=2 rollout.prompts_per_step=1 "
    "rollout.max_new_tokens=4"
)

_SHELL = {"|", "||", "&", "&&", ";", ">", ">>", "<", "<<"}
_VARIABLE = re.compile(r"[A-Z_]+=\S*")


class Serving:
    """A process of Python's that serves, ready for requests.

    Args:
        folder: where it runs.
        words: its arguments.
        ready: what it says with its address, as a pattern.
        variables: of its environment.
    """

    def __init__(
        self, folder: Path, words: Sequence[str], ready: str, **variables: str | Path
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:  # ends with the process at the latest
            said.append(line)
            found = re.search(ready, line)
            if found:
                self.url = found[1]
                return
        pytest.fail(f"{shlex.join(words)} ended:\n" + "".join(said))

    @classmethod
    def control_plane(cls, folder: Path, words: Sequence[str]) -> Serving:
        """``verl-reward serve`` with these arguments, on a free port."""
        start = ["-m", "verl_core.cli.main", "serve", *words, "server.port=0"]
        return cls(folder, start, r"is served at (http\S+)")

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)
        return self.process.returncode


class Checkout:
    """A folder like a checkout, in which a document's blocks are run one after the other."""

    def __init__(self, folder: Path, model: Path, url: Callable[[], str], capture: Any) -> None:
        self.folder, self.model, self.shared_url, self.capture = folder, model, url, capture
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name not in ("examples", "runs"):
                (folder / path.name).symlink_to(path)
        shutil.copytree(
            ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("runs")
        )
        self.config = folder / EXAMPLE / "run.yaml"
        self.page = folder / "README.md"
        self.place = ""
        self.has_trained = False
        self.elsewhere = elsewhere.Elsewhere(ROOT, folder)
        self.openrlhf: Serving | None = None
        self.serving: Serving | None = None
        self.lease_id = ""

    def url(self) -> str:
        """Of the control plane that the document has started, or else of one for all documents."""
        return self.serving.url if self.serving else self.shared_url()

    def run(self, document: Path) -> None:
        """Write the files that a document names, then run all of its blocks."""
        found = blocks.blocks_of(document)
        self.page = self.folder / document.relative_to(ROOT)
        own = self.page.with_name("run.yaml")
        self.config = own if own.exists() else self.folder / EXAMPLE / "run.yaml"
        for block in found:
            if block.file is not None:
                path = self.folder / block.file
                assert not path.exists(), f"{block.place}: {block.file} is in the checkout already"
                path.write_text(block.text, encoding="utf-8")
        for number, block in enumerate(found):
            self.place = block.place
            following = found[number + 1] if number + 1 < len(found) else None
            runner = getattr(self, f"block_{block.language}", None)
            if runner is None:
                pytest.fail(f"{block.place}: no test knows blocks of the language {block.language}")
            runner(block, following)

    def stop(self) -> None:
        """End what the document's commands left running."""
        if self.openrlhf is not None:
            self.openrlhf.stop()
        self._stop_serving()

    def _stop_serving(self) -> None:
        if self.serving is not None:
            serving, self.serving = self.serving, None
            assert serving.stop() == 0, f"{self.place}: what was served did not end well"

    # -- blocks ------------------------------------------------------------------------------

    def block_text(self, block: Any, following: Any) -> None:
        """Read by people, or compared by the block before."""

    def block_json(self, block: Any, following: Any) -> None:
        """One value, or one a line."""
        try:
            json.loads(block.text)
        except json.JSONDecodeError:
            assert all(json.loads(line) for line in block.text.splitlines()), block.place

    def block_python(self, block: Any, following: Any) -> None:
        if block.file is not None:
            compile(block.text, block.place, "exec")  # run by the YAML that names its class
            return
        if self.elsewhere.is_python(block.text):
            self.elsewhere.python(block.text)
            return
        text = block.text
        if DEFAULT_URL in text:
            text = text.replace(DEFAULT_URL, self.url())
        said = self._process(sys.executable, "-c", text)
        if following and following.language == "text" and following.gap.strip() in ("", "prints"):
            assert said == following.text, block.place

    def block_yaml(self, block: Any, following: Any) -> None:
        """A run; a part, which is found in the example's run or checked in its place; or rules."""
        value = yaml.safe_load(block.text)
        if self.elsewhere.is_verl(value):
            self.elsewhere.verl(value)
            return
        if isinstance(value, list) or "rules" in value:
            self._rules(f"rules:\n{block.text}" if isinstance(value, list) else block.text)
            return
        path = self.folder / (block.file or "part.yaml")
        if block.file is None:
            whole = yaml.safe_load(self.config.read_text(encoding="utf-8"))
            if blocks.is_excerpt(value, whole):
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

    def block_bash(self, block: Any, following: Any) -> None:
        for line in block.commands():
            words = [word.replace("$PWD", str(self.folder)) for word in line]
            if self._is_elsewhere(words):
                continue
            name = words[0].removeprefix(".venv/bin/")
            runner = getattr(self, "command_" + name.replace("-", "_"), None)
            if runner is None or set(words) & _SHELL:
                pytest.fail(f"{block.place}: no test knows how to run {shlex.join(words)}")
            answer = runner(*words[1:])
            if words[0] == "curl":
                self._answered(answer, following)

    # -- commands ----------------------------------------------------------------------------

    def _is_elsewhere(self, words: list[str]) -> bool:
        """Check a command of another environment; False where it is none, its words then as in
        this one."""
        script = [word for word in words if not _VARIABLE.fullmatch(word)]
        if script[0].endswith(".sh"):
            self.elsewhere.shell_script(script)
            return True
        if words[0] == "export":
            self.elsewhere.exported(words[1:], self.page)
            return True
        if words[:2] == ["python", "-m"]:
            if words[2] == "venv":
                self.elsewhere.environment(words[3])
            else:
                self.elsewhere.script(words[1:])
            return True
        found = elsewhere.ENVIRONMENT.fullmatch(words[0])
        if found is None:
            return False
        self.elsewhere.environment(found[1])
        words[0] = found[2]
        if found[2] == "python":
            self.elsewhere.script(words[1:-1] if words[-1] == "&" else words[1:])
            return True
        return False

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
        file = words[words.index("-c") + 1] if "-c" in words else "constraints.txt"
        for word in words:
            path, _, extra = word.partition("[")
            if word.startswith("."):
                assert (self.folder / path / "pyproject.toml").is_file(), f"{self.place}: {word}"
                assert not extra or set(extra.rstrip("]").split(",")) <= set(extras), word
            elif word not in ("-c", "-e", "--no-deps", file):
                assert self.elsewhere.pinned(file, word), f"{self.place}: {word} is not in {file}"

    def command_python(self, *words: str) -> None:
        if words == ("examples/openrlhf/serve.py",):
            ready = r"Uvicorn running on (http\S+)"
            self.openrlhf = Serving(self.folder, words, ready, PORT="0", MODEL=self.model)
            return
        self._process(sys.executable, *words)

    def _lines(self, *words: str) -> list[str]:
        return self._process(*words).splitlines()

    def command_curl(self, *words: str) -> Any:
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        if any(word.startswith(OPENRLHF_URL + "/") for word in words):
            assert self.openrlhf is not None, f"{self.place}: nothing before it serves there"
            words = tuple(word.replace(OPENRLHF_URL, self.openrlhf.url) for word in words)
        else:
            assert any(word.startswith(DEFAULT_URL + "/") for word in words), self.place
            words = tuple(word.replace(DEFAULT_URL, self.url()) for word in words)
        words = self._filled_in(words)
        if words[-1].endswith("/events"):
            return self._heard("curl", "-sS", *words)
        if any("/leases/" in word for word in words):
            said = self._process("curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", *words)
            assert said == "204", f"{self.place}: {said}"
            return {"revision": None}
        answer: Any = [json.loads(line) for line in self._lines("curl", "-sS", *words)]
        if len(answer) != 1:
            return answer
        self.lease_id = answer[0].get("id", self.lease_id)
        return answer[0]

    def _filled_in(self, words: Sequence[str]) -> tuple[str, ...]:
        """What a reader puts in: the newest revision, the run, the lease that was just given."""
        said = self._process("curl", "-sS", f"{self.url()}/api/v1/reward/weights")
        now = json.loads(said)
        filled = []
        for word in words:
            word = re.sub(r'^If-Match: "[0-9]+"$', f'If-Match: "{now["revision"]}"', word)
            word = word.replace("LEASE_ID", self.lease_id).replace("RUN_ID", now["run_id"])
            filled.append(word)
        return tuple(filled)

    def _heard(self, *words: str) -> dict[str, Any]:
        """The data of the first event of a stream, which is then left."""
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            data = next(line for line in process.stdout if line.startswith("data: "))
            process.terminate()
        process.wait()
        found: dict[str, Any] = json.loads(data.removeprefix("data: "))
        return found

    def _answered(self, answer: Any, following: Any) -> None:
        """A refusal must be announced: the next block is the answer (of a stream its lines), but
        for the names of run and lease, and with numbers that may be rounded."""
        told = None
        if following and following.language == "json":
            lines = following.text.splitlines() if isinstance(answer, list) else [following.text]
            told = [json.loads(line) for line in lines]
            assert isinstance(answer, list) or len(told) == 1, self.place
            told = told if isinstance(answer, list) else told[0]
        if isinstance(answer, list):
            assert blocks.rounded(answer) == told, self.place
        elif told is None:
            assert "revision" in answer, f"{self.place}: {answer}"
        else:
            own = dict.fromkeys({"run_id", "id"} & answer.keys(), "")
            assert blocks.rounded(answer) | own == told | own, self.place

    def command_verl_reward(self, *words: str) -> str:
        """Run in this process. A run that trains is made small, and after a document's first one
        the others are checked only, but for those that resume."""
        if words[0] == "serve":
            self._stop_serving()
            self.serving = Serving.control_plane(self.folder, words[1:])
            return ""
        if words[:2] == ("weights", "watch"):
            self._watched(*words[2:])
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

    def _watched(self, *options: str) -> None:
        """Run ``weights watch`` until its first line, then press Ctrl-C."""
        words = ["-m", "verl_core.cli.main", "weights", "watch", "--url", self.url(), *options]
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline().startswith("Run "), self.place
            process.send_signal(signal.SIGINT)
        assert process.wait() == 0, self.place

    def _process(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        shown = f"{self.place}: {shlex.join(words)}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, shown
        return done.stdout


@pytest.fixture(name="blocks_of", scope="session")
def _blocks_of() -> Callable[[Path], list[Any]]:
    return blocks.blocks_of  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Gives the address of ``verl-reward serve`` with the example, started by the first asker."""
    folder = tmp_path_factory.mktemp("serve")
    started: list[Serving] = []

    def url() -> str:
        if not started:
            started.append(Serving.control_plane(folder, [str(ROOT / EXAMPLE / "run.yaml")]))
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
) -> Iterator[Checkout]:
    """A `Checkout` that is the current folder, with an environment of its own."""
    for variable in [name for name in os.environ if name.startswith("VERL_REWARD")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))  # a config's folder is appended to it
    folder = tmp_path / "verl-reward"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = Checkout(folder, tiny_model_dir, control_plane, capsys)
    yield made
    made.stop()
