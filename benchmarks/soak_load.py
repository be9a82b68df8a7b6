"""What happens to the server in a soak: requests, changes of the weights, files replaced, kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from serving import (
    SCORE,
    Answer,
    Client,
    Served,
    at_rate,
    write_model,
    write_rules,
    write_words,
)
from soak_ledger import Change, Ledger, Shown, Timeline

WEIGHTS = "/api/v1/reward/weights"
LEASES = "/api/v1/reward/leases"
#: One word is forbidden at a time: the row that is vetoed tells the list's version modulo this.
WORDS = 8
SCALE = 1e4
#: Requests under way at once: fewer than the server takes, so that it has no reason to refuse one.
MOST, MOST_LEASES = 32, 12
ASSETS = ("tone", "guard", "model")
BLOCKING = {"tone", "guard"}
RUN = """
name: soak
model: {path: none/needed}
data: {train: data.jsonl}
reward:
  - {type: tone, plugin: rules, init_kwargs: {rules: tone.yaml}}
  - {type: guard, plugin: safety, role: gate, penalty: -1.0, init_kwargs: {words: words.txt}}
  - {type: model, plugin: bench_file, reload: background, init_kwargs: {model: m.safetensors}}
"""


class Files:
    """The assets; what stands in each tells its version."""

    def __init__(self, folder: Path, ledger: Ledger, megabytes: float) -> None:
        self._folder, self._ledger, self._megabytes = folder, ledger, megabytes
        self._numbers = {asset: count(1) for asset in ASSETS}
        self._turns = count()
        ledger.files.update({asset: Timeline() for asset in ASSETS})

    def swap(self) -> None:
        """Replace the next one."""
        asset = ASSETS[next(self._turns) % len(ASSETS)]
        version, sent = next(self._numbers[asset]), time.monotonic()
        if asset == "tone":
            write_rules(self._folder / "tone.yaml", version / SCALE)
        elif asset == "guard":
            write_words(self._folder / "words.txt", f"forbidden{version % WORDS}")
        else:
            write_model(self._folder / "m.safetensors", version / SCALE, self._megabytes)
        self._ledger.files[asset].add(version, sent, time.monotonic())


class Soak:
    """One soak of a server, written down in `ledger`.

    Args:
        served: with `WORDS` rows a request.
        rate: requests a second without a lease.
    """

    def __init__(self, served: Served, files: Files, ledger: Ledger, rate: float) -> None:
        self.served, self.files, self.ledger = served, files, ledger
        self._rate = rate
        self._client = Client(served.port)
        self._numbers, self._groups = count(1), count(1)
        self._run_id = ""
        rows = [
            {"prompt": "?", "response": f"row {i} says forbidden{i}, which is sometimes forbidden"}
            for i in range(WORDS)
        ]
        self._rows = rows
        #: Status -> how often, of scoring requests.
        self.statuses: dict[int, int] = {}
        self.seconds: list[float] = []
        #: Requests that were not made, because so many were under way.
        self.skipped = 0

    async def run(self, seconds: float, every: Every) -> None:
        """All at once, for so long; then what is under way ends."""
        self._run_id = (await self._known("GET", WEIGHTS)).json()["run_id"]
        end = time.monotonic() + seconds
        await asyncio.gather(
            self._ask_on(seconds),
            at_rate(every.leases, seconds - 10.0, self._leased, most=MOST_LEASES),
            self._each(every.change, end, self._change),
            self._each(every.swap, end, self._swap),
            self._each(every.kill, end - 10.0, self._kill, first=every.kill / 2),
        )

    async def _ask_on(self, seconds: float) -> None:
        self.skipped = await at_rate(self._rate, seconds, self._score, most=MOST)

    async def history(self) -> list[dict[str, Any]]:
        """The audit log, oldest first."""
        self.ledger.settle("guard", WORDS)
        answer = await self._known("GET", f"{WEIGHTS}/history?limit=10000")
        found: list[dict[str, Any]] = answer.json()["history"]
        return found[::-1]

    def close(self) -> None:
        self._client.close()

    async def _each(
        self, pause: float, end: float, act: Callable[[], Awaitable[None]], first: float = 0.0
    ) -> None:
        due = time.monotonic() + first
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await act()
            due = max(due + pause, time.monotonic())

    # -- requests ----------------------------------------------------------------------------------

    async def _asked(
        self, what: str, method: str, path: str, body: Any = None, reason: str | None = None
    ) -> tuple[Answer, float, float]:
        """An answer, when it was asked for, and when it came; a lost one is written down."""
        headers = {"X-Verl-Author": "soak", "X-Verl-Reason": reason} if reason else None
        sent = time.monotonic()
        answer = await self._client.ask(method, path, body, headers)
        done = time.monotonic()
        if answer.status == 0:
            self.ledger.lost.append((what, sent, done))
        return answer, sent, done

    async def _known(self, method: str, path: str) -> Answer:
        """An answer of 200 to what changes nothing and may be asked again."""
        for _ in range(20):
            answer, _, _ = await self._asked(path, method, path)
            if answer.status == 200:
                return answer
            await asyncio.sleep(0.1)
        raise SystemExit(f"{method} {path}: {answer.status}, {answer.body.decode()}")

    def _odd(self, what: str, answer: Answer) -> None:
        self.ledger.wrong.append(f"{what}: {answer.status}, {answer.body.decode()[:300]}")

    async def _score(self, due: float, lease: str | None = None) -> int:
        body = {"rows": self._rows} if lease is None else {"rows": self._rows, "lease": lease}
        answer, sent, done = await self._asked("a score", "POST", SCORE, body)
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        if answer.status == 200:
            if lease is None:
                self.seconds.append(time.perf_counter() - due)
            self._read(answer.json(), sent, done, lease)
        elif answer.status not in (0, 429, 410 if lease else 0):
            self._odd("a score", answer)
        return answer.status

    def _read(self, told: dict[str, Any], sent: float, done: float, lease: str | None) -> None:
        """Take the versions out of the scores, and add the fused ones up again."""
        rows, weights = told["rows"], told["weights"]
        parts = [row["components"] for row in rows]
        seen = {(part["tone"]["score"], part["model"]["score"]) for part in parts}
        vetoed = [i for i, part in enumerate(parts) if part["guard"]["severity"] == "veto"]
        if len(seen) != 1 or len(vetoed) != 1:
            self.ledger.wrong.append(f"an answer mixes {sorted(seen)}, and vetoes rows {vetoed}")
            return
        tone, model = seen.pop()
        fused = weights["tone"] * tone + weights["model"] * model
        for i, row in enumerate(rows):
            if i not in vetoed and abs(row["fused"] - fused) > 1e-12 * abs(fused):
                self.ledger.wrong.append(f"{row['fused']} is not {weights} of {tone}, {model}")
        versions = {
            "tone": round(tone * SCALE),
            "model": round(model * SCALE),
            "guard": vetoed[0],  # until `Ledger.settle`
        }
        if (versions["tone"] / SCALE, versions["model"] / SCALE) != (tone, model):
            self.ledger.wrong.append(f"no file says {tone}, {model}")
        self.ledger.answers.append(Shown(sent, done, lease, told["revision"], weights, versions))

    async def _leased(self, _: float) -> None:
        """A lease, ten seconds of scores under it, and its end."""
        body = {"run_id": self._run_id, "group": f"group {next(self._groups)}"}
        answer, sent, done = await self._asked("a lease", "POST", LEASES, body)
        if answer.status != 201:
            if answer.status:
                self._odd("a lease", answer)
            return
        told = answer.json()
        lease = told["id"]
        self.ledger.leases[lease] = (sent, done, told["revision"])
        for _ in range(8):
            if await self._score(0.0, lease) == 410:
                self.ledger.ended.append((done, time.monotonic(), lease))
                return
            await asyncio.sleep(1.0)
        answer, _, _ = await self._asked("the end of a lease", "DELETE", f"{LEASES}/{lease}")
        if answer.status == 410:
            self.ledger.ended.append((done, time.monotonic(), lease))
        elif answer.status not in (0, 204):
            self._odd("the end of a lease", answer)

    # -- what is done to it ------------------------------------------------------------------------

    async def _change(self) -> None:
        number = next(self._numbers)
        weights = {"tone": 1.0 + number / 1000.0}
        if number % 3 == 0:
            weights["model"] = 2.0 + number / 1000.0
        change = Change(number, time.monotonic(), None, weights)
        answer, change.sent, done = await self._asked(
            "a change", "POST", WEIGHTS, weights, change.reason
        )
        self.ledger.changes.append(change)
        if answer.status == 200:
            change.answered, change.revision = done, answer.json()["revision"]
        elif answer.status:
            self._odd("a change", answer)
        else:  # taken or not, it shows now: nobody is left to take it
            await self._known("GET", f"{WEIGHTS}/history?limit=1")
            change.answered = time.monotonic()

    async def _swap(self) -> None:
        await asyncio.to_thread(self.files.swap)

    async def _kill(self) -> None:
        """Kill the younger worker: the older one shows whether memory grows."""
        victim = (await asyncio.to_thread(self.served.workers))[-1]
        before = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        await asyncio.to_thread(_gone, victim)
        self.ledger.kills.append((before, time.monotonic()))
        while True:
            await asyncio.sleep(0.1)
            workers = await asyncio.to_thread(self.served.workers)
            if len(workers) < 2 or victim.pid in [worker.pid for worker in workers]:
                continue
            health = (await self._known("GET", "/healthz")).json()
            if health.get("workers_ready") == len(workers):
                break
        self.ledger.repairs.append((before, time.monotonic()))


class Every:
    """How often: seconds between two changes, swaps and kills, and leases a second."""

    def __init__(
        self, change: float = 1.0, swap: float = 5.0, kill: float = 30.0, leases: float = 0.5
    ) -> None:
        self.change, self.swap, self.kill, self.leases = change, swap, kill, leases


def _gone(process: psutil.Process) -> None:
    """Return when a killed process holds no connection any more: not before it was waited for, as
    a zombie's other threads may still have to end."""
    while psutil.pid_exists(process.pid):
        time.sleep(0.001)


def write_folder(folder: Path) -> None:
    """The config."""
    (folder / "run.yaml").write_text(RUN, "utf-8")
    (folder / "data.jsonl").write_text(json.dumps({"prompt": ""}) + "\n", "utf-8")
