"""What the tests of scoring over HTTP share: real plugins, a real engine, a real server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from verl_core.control import ControlServer, ControlState
from verl_core.control.connection import Limits
from verl_core.control.scoring.admission import ScoringLimits
from verl_core.integrations.fitting import read_rewards
from verl_core.rewards import RewardEngine
from verl_core.rewards.lease_book import LINGER, LeaseBook

SCORE = "/api/v1/reward/score"
NDJSON = {"Content-Type": "application/x-ndjson"}

PLUGIN = '''
import threading, time
from pathlib import Path
from verl_reward_sdk import RewardProvider, RewardResult, hookimpl

VERL_REWARD_API = 1


class Length(RewardProvider):
    """Counts characters, at once."""

    name = "length"
    execution = "inline"

    def score(self, batch):
        return [float(len(text)) for text in batch.responses]


class Match(RewardProvider):
    """1 where the response is the column truth; abstains from an empty one."""

    name = "match"
    execution = "inline"
    reads = frozenset({"truth"})

    def score(self, batch):
        pairs = zip(batch.responses, batch.columns["truth"])
        return [None if not text else float(text == truth) for text, truth in pairs]


class Slow(RewardProvider):
    """Waits as many seconds as the response says; the file `hold` makes it wait for good."""

    name = "slow"
    thread_safe = True

    def score(self, batch):
        for text in batch.responses:
            time.sleep(float(text or 0))
        while Path("hold").exists():
            time.sleep(0.01)
        return [1.0] * len(batch.responses)


class Guard(RewardProvider):
    """A gate: vetoes "bad", and breaks over "break"."""

    name = "guarding"
    role = "gate"
    execution = "inline"

    def score(self, batch):
        fails = {i: "it broke" for i, text in enumerate(batch.responses) if text == "break"}
        words = ["veto" if text == "bad" else "none" for text in batch.responses]
        return RewardResult([0.0] * len(words), severity=words, failures=fails)


class Breaking(RewardProvider):
    """Cannot be loaded."""

    name = "breaking"

    def setup(self):
        raise OSError("weights are truncated")

    def score(self, batch):
        return []


@hookimpl
def verl_reward_providers():
    yield from (Length, Match, Slow, Guard, Breaking)
'''

INLINE = "reward: [{type: a, plugin: length}, {type: b, plugin: length, weight: 2.0}]\n"
RUN = f"model: {{path: none}}\ndata: {{train: none.jsonl}}\n{INLINE}"


def install(site: Any) -> None:
    """Make the plugins above installed."""
    rewards = dict.fromkeys(("length", "match", "slow", "guarding", "breaking"), "score_toys")
    site.add("verl-reward-score-toys", rewards=rewards, files={"score_toys.py": PLUGIN})


def environment(site: Any) -> dict[str, str]:
    """Of a process that finds the installed plugins of `site`, and no variable of ours."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("VERL_REWARD")}
    paths = [str(site.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return env | {"PYTHONPATH": os.pathsep.join(paths), "HOME": str(site.home)}


class Scorer(ControlServer):
    """A real server over a real engine in this process, and a client of it."""

    def __init__(
        self,
        folder: Path,
        text: str = INLINE,
        *,
        limits: Limits | None = None,
        scoring: ScoringLimits | None = None,
        path: Path | None = None,
        **state: Any,
    ) -> None:
        config = folder / "rewards.yaml"
        config.write_text(text, "utf-8")
        self.engine = RewardEngine.from_config(
            read_rewards(config).train, store_path=path, store_shared=True, run_id="demo"
        )
        self.engine.setup()
        store = self.engine.store
        assert store is not None
        self.state = ControlState(
            run_id="demo",
            store=store,
            engine=self.engine,
            scoring=scoring or ScoringLimits(),
            leases=LeaseBook(store, self.engine.lease, generations=self.engine, linger=LINGER),
            **{"providers": self.engine.describe, "reload": self.engine.reload, **state},
        )
        super().__init__(self.state, port=0, limits=limits)
        self.client = httpx.Client(
            base_url=self.url,
            trust_env=False,
            timeout=60,
            limits=httpx.Limits(max_connections=128, max_keepalive_connections=128),
        )

    def score(self, *responses: str, **options: Any) -> httpx.Response:
        """Ask for these responses' rewards."""
        rows = [{"response": text} for text in responses]
        return self.client.post(SCORE, json={"rows": rows, **options})

    def lines(self, body: Any, **query: Any) -> list[dict[str, Any]]:
        """What a stream answers, a value a line."""
        answer = self.client.post(SCORE, content=body, headers=NDJSON, params=query)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    def stop(self) -> None:
        self.client.close()
        super().stop()
        self.engine.close()


def fused(answer: httpx.Response) -> list[float | None]:
    """The fused rewards of an answer."""
    assert answer.status_code == 200, answer.text
    return [row["fused"] for row in answer.json()["rows"]]


class Process:
    """``verl-reward serve`` in a process of its own.

    Args:
        folder: where it runs.
        env: its environment.
        words: further arguments.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], words: Sequence[str]) -> None:
        command = [sys.executable, "-W", "error", "-m", "verl_core.cli.main", "serve", "run.yaml"]
        self.errors = folder / "stderr.txt"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        first = self.process.stdout.readline().decode()
        self.url = next((word for word in first.split() if word.startswith("http")), "")
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def ready(self) -> None:
        """Return when /readyz says so."""
        while self.process.poll() is None:
            if self.client.get("/readyz").status_code == 200:
                return
            time.sleep(0.02)
        raise AssertionError(self.said())

    def said(self) -> str:
        """What stands on stderr."""
        return self.errors.read_text("utf-8")

    def workers(self) -> list[int]:
        """Its workers' process ids."""
        import psutil

        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none
                if any("serve_worker" in word for word in child.cmdline()):
                    found.append(child.pid)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        self.client.close()
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode

    def kill(self) -> None:
        """Whatever is left of it."""
        self.client.close()
        for pid in self.workers() if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class JsonProcess(Process):
    """The same with ``server.log: json``: it says nothing on stdout, so that its address must be
    known.

    Args:
        url: where it listens.
    """

    def __init__(
        self, folder: Path, env: Mapping[str, str], words: Sequence[str], url: str
    ) -> None:
        command = [sys.executable, "-W", "error", "-m", "verl_core.cli.main", "serve", "run.yaml"]
        self.errors, self._out, self.url = folder / "stderr.txt", folder / "stdout.txt", url
        with self.errors.open("wb") as errors, self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *words], cwd=folder, env=env, stdout=out, stderr=errors
            )
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def ready(self) -> None:
        """Return when /readyz says so, which may be long after it listens."""
        while self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/readyz").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(self.said())

    def out(self) -> str:
        """What stands on stdout."""
        return self._out.read_text("utf-8")
