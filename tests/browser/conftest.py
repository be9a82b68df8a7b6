"""A headless Chromium, and things to look at with it.

Where there is no Chromium these tests are skipped, and pytest's summary says how many. Debian's
package is `chromium`; another one is named by the variable ``CHROMIUM``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.config.rewards import RewardsConfig
from verl_core.control import ControlServer, ControlState
from verl_core.control.run import Recorder
from verl_core.rewards import RewardEngine
from verl_reward_sdk import RewardBatch

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 60  # a busy machine is slow; what waits is told when it happens, not after a time
RULES = r"""score: {base: 0.0, min: 0.0, max: 1.0}
rules:
  - {name: spaced, regex: '\s', points: 0.25, reason: has a space}
  - {name: polite, regex: 'please', points: 0.5, reason: asks politely}
"""


def chromium() -> str | None:
    """The browser's program, where there is one."""
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [shutil.which(name) for name in _NAMES]
    return next((path for path in found if path and Path(path).exists()), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for the tests of a file, and no longer: until Playwright is stopped, an event loop of its
    own runs in this thread, where tests of other files could start none."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]  # root has no sandbox in a container
        made = playwright.chromium.launch(executable_path=path, args=options)
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address in a window of its own; gives Playwright's page.

    A script that fails, something that the policy forbids, or a request to another server fails
    the test.
    """
    contexts: list[Any] = []
    faults: list[str] = []

    def open_page(url: str, *, path: str = "/", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(_SECONDS * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"script: {error}"))
        page.on("console", lambda message: _note(faults, message.type, message.text))
        page.on("request", lambda request: _note_foreign(faults, request.url, url))
        page.goto(url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _note(faults: list[str], kind: str, text: str) -> None:
    # What the network does is part of some tests; the browser itself tells it as an error.
    if kind == "error" and "Failed to load resource" not in text:
        faults.append(text)


def _note_foreign(faults: list[str], asked: str, url: str) -> None:
    if not asked.startswith((url, "data:")):
        faults.append(f"asked elsewhere: {asked}")


def eventually(found: Callable[[], Any], seconds: float = _SECONDS) -> Any:
    """What `found` gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
    return value


@pytest.fixture
def until() -> Callable[..., Any]:
    return eventually


class Shop:
    """Real mounts behind a real server in this process; `score` makes something to see."""

    def __init__(self, folder: Path, *, token: str | None = None) -> None:
        self.folder = folder
        (folder / "rules.yaml").write_text(RULES, "utf-8")
        (folder / "words.txt").write_text("rogue\n", "utf-8")
        mounts = [
            {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}},
            {
                "type": "overlap",
                "plugin": "chrf",
                "weight": {"linear": {"from": 2.0, "to": 0.5, "steps": 200}},
            },
            {
                "type": "guard",
                "plugin": "safety",
                "role": "gate",
                "penalty": -1.0,
                "init_kwargs": {"words": "words.txt"},
            },
        ]
        cfg = RewardsConfig.model_validate({"mounts": mounts, "base_dir": folder})
        self.engine = RewardEngine.from_config(cfg, run_id="shop-1")
        self.engine.setup()
        assert self.engine.store is not None
        self.store = self.engine.store
        self.recorder = Recorder({"name": "shop"}, seconds=0.2, share=10.0)
        self.engine.subscribe(self.recorder.observe)
        more: dict[str, Any] = {}
        if hasattr(self.engine, "reload"):
            more["reload"] = self.engine.reload
        state = ControlState(
            run_id="shop-1",
            store=self.store,
            providers=self.engine.describe,
            run=self.recorder,
            token=token,
            **more,
        )
        self.server = ControlServer(state, port=0)
        self.server.start()
        self.url = self.server.url

    def score(self, *responses: str) -> Any:
        records: list[dict[str, Any]] = [
            {"prompt": "Is it fine?", "response": text, "ground_truth": "It is fine, please."}
            for text in responses
        ]
        return self.engine.score(RewardBatch.from_records(records))

    def close(self) -> None:
        self.server.stop()
        self.engine.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Starts a `Shop`."""
    made: list[Shop] = []

    def start(**options: Any) -> Shop:
        folder = tmp_path / f"shop-{len(made)}"
        folder.mkdir()
        made.append(Shop(folder, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


class Process:
    """``verl-reward …`` in a process of its own; `url` is read from what it prints."""

    def __init__(self, folder: Path, env: dict[str, str], *words: str) -> None:
        command = [sys.executable, "-m", "verl_core.cli.main", *words]
        self.log = folder / "process.log"
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT
            )

        def address() -> str | None:
            text = self.log.read_bytes()[begin:].decode("utf-8", "replace")
            assert self.process.poll() is None, text
            return next((w.rstrip("; ") for w in text.split() if w.startswith("http://")), None)

        self.url = str(eventually(address))

    def get(self, path: str) -> dict[str, Any]:
        with httpx.Client(verify=False, trust_env=False, timeout=30) as client:
            found: dict[str, Any] = client.get(self.url + path).json()
            return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Starts a `Process`."""
    started: list[Process] = []

    def start(folder: Path, env: dict[str, str], *words: str) -> Process:
        started.append(Process(folder, env, *words))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
