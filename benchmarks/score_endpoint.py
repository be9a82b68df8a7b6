"""What ``POST /api/v1/reward/score`` costs beside a handler that one would write by hand.

One server process each, one client process that keeps `--clients` requests under way: 64 short rows
and three mounts that count characters. The peer is a FastAPI handler on the same uvicorn that
validates the same body with the same model, calls the same three functions in a row, and returns a
list of their sums: no weights, leases, statuses or limits. The two take turns; servers have one
core, and the client another, where there are two.

    python benchmarks/score_endpoint.py [--json] [--rows N] [--clients N] [--seconds S] [--turns N]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import typer
from figures import Figure, show, warn_if_busy
from length_plugin import install, write_run

from verl_core.cli.errors import run as with_messages

#: Our requests a second over the peer's.
TARGET = 0.8
MOUNTS = 3


def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows of a request.")] = 64,
    clients: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of one turn.")] = 2.0,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each; the median counts.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure requests a second, and how long they take, of our endpoint and a plain handler."""
    with tempfile.TemporaryDirectory(prefix="score-") as folder, redirect_stdout(sys.stderr):
        warn_if_busy()
        install(Path(folder))
        write_run(Path(folder) / "run.yaml", MOUNTS)
        found = measure(Path(folder), _body(rows), clients, seconds, turns)
    show(
        f"{rows} rows a request, {MOUNTS} mounts, {clients} requests under way, the median of"
        f" {turns} turns of {seconds:g} s",
        figures(found),
        as_json=as_json,
        notes=["The peer: a FastAPI handler, same model, same functions, same uvicorn."],
    )


def figures(found: dict[str, list[list[float]]]) -> list[Figure]:
    """Throughput and latencies; name -> turn -> ``[seconds of the turn, each request's]``."""

    def median(name: str, of: Callable[[list[float]], float]) -> float:
        return statistics.median(of(turn) for turn in found[name])

    def share(part: float) -> Callable[[list[float]], float]:
        return lambda turn: 1e3 * sorted(turn[1:])[int(part * (len(turn) - 2))]

    def rate(turn: list[float]) -> float:
        return (len(turn) - 1) / turn[0]

    return [
        Figure("requests a second", median("ours", rate), median("peer", rate), "1/s", TARGET),
        *(
            Figure(
                f"{name} of a request",
                median("ours", share(part)),
                median("peer", share(part)),
                "ms",
                higher_is_better=False,
            )
            for name, part in (("p50", 0.5), ("p99", 0.99))
        ),
    ]


def measure(
    folder: Path, body: bytes, clients: int, seconds: float, turns: int
) -> dict[str, list[list[float]]]:
    """Serve both, and ask them in turn."""
    context = multiprocessing.get_context("spawn")
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    ports = {"ours": _free_port(), "peer": _free_port()}
    paths = {"ours": "/api/v1/reward/score", "peer": "/score"}
    servers: list[BaseProcess] = [
        context.Process(target=serve, args=(folder, ports[name]), daemon=True)
        for name, serve in (("ours", serve_ours), ("peer", serve_peer))
    ]
    for server in servers:
        server.start()
    try:
        _take_core(-1)
        for name, port in ports.items():
            _wait_for(port)
            asyncio.run(ask(port, paths[name], body, clients, 0.3))
        found: dict[str, list[list[float]]] = {name: [] for name in ports}
        for _ in range(turns):
            for name, port in ports.items():
                found[name].append(asyncio.run(ask(port, paths[name], body, clients, seconds)))
        return found
    finally:
        for server in servers:
            server.terminate()
            server.join()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)


# -- the two servers -----------------------------------------------------------------------------


def serve_ours(folder: Path, port: int) -> None:
    """``verl-reward serve`` with one worker."""
    from verl_core.cli.main import main as verl_reward

    _take_core(0)
    sys.path.insert(0, str(folder))
    os.environ.pop("VERL_REWARD_TOKEN", None)
    config = folder / "run.yaml"
    (folder / "data.jsonl").write_text('{"prompt": ""}\n', "utf-8")
    with config.open("a", encoding="utf-8") as file:
        file.write("model: {path: none/needed}\ndata: {train: data.jsonl}\n")
    with redirect_stdout(sys.stderr):
        verl_reward(["serve", str(config), f"server.port={port}", "--state", str(folder / "state")])


def serve_peer(folder: Path, port: int) -> None:
    """A plain handler."""
    import uvicorn
    from fastapi import FastAPI

    from verl_core.control.scoring.models import ScoreRequest

    _take_core(0)
    app = FastAPI()
    functions = [lambda text: float(len(text))] * MOUNTS

    async def score(request: ScoreRequest) -> list[float]:
        parts = [[function(row.response) for row in request.rows] for function in functions]
        return [sum(row) for row in zip(*parts, strict=True)]

    score.__annotations__ = {"request": ScoreRequest, "return": list[float]}
    app.post("/score")(score)
    uvicorn.run(app, port=port, http="h11", loop="asyncio", access_log=False, log_level="warning")


# -- the client ----------------------------------------------------------------------------------


async def ask(port: int, path: str, body: bytes, clients: int, seconds: float) -> list[float]:
    """``[seconds it took, seconds of each request]``: so many clients ask without a pause."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    taken: list[float] = []
    start = time.perf_counter()
    end = start + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begin := time.perf_counter()) < end:
            writer.write(head + body)
            await _answer(reader)
            taken.append(time.perf_counter() - begin)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return [time.perf_counter() - start, *taken]


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(head.decode())
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(length)


def _body(rows: int) -> bytes:
    made: list[dict[str, Any]] = [
        {
            "prompt": f"Where is order {number}?",
            "response": "Thank you for asking; it left our house on Monday.",
            "columns": {"ground_truth": "It left on Monday."},
            "group": str(number // 8),
        }
        for number in range(rows)
    ]
    return json.dumps({"rows": made}).encode()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    """Return when it answers, and where there is a /readyz is ready."""
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except HTTPError as error:
            if error.code == 404:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"nothing is ready on port {port}")


def _take_core(which: int) -> None:
    """Keep to one core, the first for servers, the last for the client, where there are several."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[which]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="score_endpoint.py")))
