"""What an exchanged file costs those who are being answered meanwhile.

``verl-reward serve`` with one worker and three mounts that read files: rules, a word list, and a
model-like file of some megabytes, each with ``reload: background``. Requests come at a fixed rate,
half of what the server can do, whether or not the last ones were answered; a request's time counts
from the moment it was due. Once without and once with one file replaced every second, in turn.

    python benchmarks/swap_load.py [--json] [--rows N] [--seconds S] [--turns N] [--megabytes N]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from figures import Figure, show, warn_if_busy
from serving import (
    SCORE,
    Client,
    Served,
    at_rate,
    install,
    write_model,
    write_rules,
    write_words,
)

from verl_core.cli.errors import run as with_messages

#: p99 with swaps over p99 without.
TARGET = 1.5
CLIENTS = 8
RUN = """
name: swap-load
model: {path: none/needed}
data: {train: data.jsonl}
reward:
  - {type: tone, plugin: rules, reload: background, init_kwargs: {rules: tone.yaml}}
  - {type: guard, plugin: safety, role: gate, penalty: -1.0, reload: background,
     init_kwargs: {words: words.txt}}
  - {type: model, plugin: bench_file, reload: background, init_kwargs: {model: m.safetensors}}
"""


def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows of a request.")] = 16,
    seconds: Annotated[float, typer.Option(min=1.0, help="Of one turn.")] = 10.0,
    turns: Annotated[int, typer.Option(min=1, help="Of each; the median counts.")] = 5,
    megabytes: Annotated[int, typer.Option(min=1, help="Of the model-like file.")] = 16,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure how long requests take, while files are exchanged and while none is."""
    with tempfile.TemporaryDirectory(prefix="swap-load-") as folder, redirect_stdout(sys.stderr):
        warn_if_busy()
        found = measure(Path(folder), rows, seconds, turns, megabytes)
    show(
        f"{rows} rows a request, {found.rate:.0f} requests a second (half of what it can do), the"
        f" median of {turns} turns of {seconds:g} s",
        found.figures(),
        as_json=as_json,
        notes=[
            f"The peer: the same without swaps. {found.swaps} files were replaced,"
            f" {found.generations} generations began to serve. Failed, by status:"
            f" {dict(found.failed) or 'none'}."
        ],
    )


class Found:
    """What was measured.

    Attributes:
        rate: requests a second.
        quiet, swapping: of each turn the seconds of its requests.
        failed: status -> requests without an answer of 200; 0: the connection was lost.
        swaps: files that were replaced.
        generations: that served after them.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.quiet: list[list[float]] = []
        self.swapping: list[list[float]] = []
        self.failed: Counter[int] = Counter()
        self.swaps = self.generations = 0

    def figures(self) -> list[Figure]:
        """The latencies, and what failed."""

        def share(turns: list[list[float]], part: float) -> float:
            return statistics.median(
                1e3 * sorted(turn)[int(part * (len(turn) - 1))] for turn in turns
            )

        made = [
            Figure(
                f"{name} of a request, a file replaced every second",
                share(self.swapping, part),
                share(self.quiet, part),
                "ms",
                target,
                higher_is_better=False,
            )
            for name, part, target in (("p99", 0.99, TARGET), ("p50", 0.5, None))
        ]
        return [
            *made,
            Figure("failed requests", self.failed.total(), None, "", 0, higher_is_better=False),
            Figure("swaps", self.generations, self.swaps, ""),
        ]


def measure(folder: Path, rows: int, seconds: float, turns: int, megabytes: int) -> Found:
    """Serve, and ask in turn without and with swaps."""
    files = Files(folder, megabytes)
    install(folder)
    (folder / "run.yaml").write_text(RUN, "utf-8")
    (folder / "data.jsonl").write_text('{"prompt": ""}\n', "utf-8")
    for _ in range(3):
        files.swap()
    served = Served(folder)
    try:
        served.wait()
        return asyncio.run(_measured(served.port, files, rows, seconds, turns))
    finally:
        served.stop()


async def _measured(port: int, files: Files, rows: int, seconds: float, turns: int) -> Found:
    client, body = Client(port), _body(rows)
    await _capacity(client, body, 1.0)  # to warm it up
    found = Found(await _capacity(client, body, 2.0) / 2)
    before, already = await _generations(client), files.swaps
    for _ in range(turns):
        found.quiet.append(await _turn(client, body, found, seconds))
        stop = asyncio.Event()
        swapping = asyncio.ensure_future(files.keep_swapping(stop))
        found.swapping.append(await _turn(client, body, found, seconds))
        stop.set()
        await swapping
        await asyncio.sleep(1.0)  # the last one is loaded
        await client.ask("POST", SCORE, body)
    found.swaps = files.swaps - already
    found.generations = await _generations(client) - before
    client.close()
    return found


async def _capacity(client: Client, body: bytes, seconds: float) -> float:
    """Requests a second of `CLIENTS` that ask without a pause."""
    begin = time.perf_counter()
    answered = 0

    async def ask() -> None:
        nonlocal answered
        while time.perf_counter() < begin + seconds:
            answer = await client.ask("POST", SCORE, body)
            if answer.status != 200:
                raise SystemExit(f"status {answer.status}: {answer.body.decode()}")
            answered += 1

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return answered / (time.perf_counter() - begin)


async def _turn(client: Client, body: bytes, found: Found, seconds: float) -> list[float]:
    taken: list[float] = []

    async def once(due: float) -> None:
        answer = await client.ask("POST", SCORE, body)
        if answer.status == 200:
            taken.append(time.perf_counter() - due)
        else:
            found.failed[answer.status] += 1

    await at_rate(found.rate, seconds, once)
    return taken


async def _generations(client: Client) -> int:
    answer = await client.ask("GET", "/api/v1/reward/providers")
    return sum(provider["generation"] for provider in answer.json()["providers"])


class Files:
    """The three files, and their next contents.

    Attributes:
        swaps: so many were replaced.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder, self._megabytes = folder, megabytes
        self._numbers = count(1)
        self.swaps = 0

    def swap(self) -> None:
        """Replace the next one."""
        number = next(self._numbers)
        value = number / 1e4
        if number % 3 == 0:
            write_model(self._folder / "m.safetensors", value, self._megabytes)
        elif number % 3 == 1:
            write_rules(self._folder / "tone.yaml", value)
        else:
            write_words(self._folder / "words.txt", f"word{number}")
        self.swaps += 1

    async def keep_swapping(self, stop: asyncio.Event) -> None:
        """One a second, until `stop`."""
        while not stop.is_set():
            await asyncio.to_thread(self.swap)
            try:
                await asyncio.wait_for(stop.wait(), 1.0)
            except asyncio.TimeoutError:
                continue


def _body(rows: int) -> bytes:
    text = "Thank you for asking about row {}; it left our house on Monday."
    made = [{"prompt": f"Where is {i}?", "response": text.format(i)} for i in range(rows)]
    return json.dumps({"rows": made}).encode()


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="swap_load.py")))
