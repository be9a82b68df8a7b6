"""What benchmarks of ``verl-reward serve`` share: the real command as a process, and a client that
neither waits for answers before it asks again nor asks twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import psutil
from safetensors.numpy import save_file

SCORE = "/api/v1/reward/score"

#: A provider that loads a file of any size, as a model does, and scores what stands in it.
PLUGIN = """
from verl_reward_sdk import AssetPath, ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1


class FileConfig(ProviderConfig):
    model: AssetPath


class File(RewardProvider[FileConfig]):
    name = "bench_file"
    execution = "inline"
    score_range = (0.0, 1.0)

    def assets(self):
        return (self.config.model,)

    def setup(self):
        from safetensors.numpy import load_file

        weights = load_file(self.config.model)["w"]
        self.value = float(weights[0])
        if float(weights.min()) != float(weights.max()):
            raise ValueError("the file is a mixture of two")

    def score(self, batch):
        return [self.value] * len(batch)


@hookimpl
def verl_reward_providers():
    return [File]
"""


def install(folder: Path) -> None:
    """Put the plugin where a process with this folder in PYTHONPATH finds it."""
    (folder / "bench_file.py").write_text(PLUGIN, "utf-8")
    info = folder / "bench_file-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-file\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verl_reward]\nbench_file = bench_file\n")


def write_rules(path: Path, value: float) -> None:
    """A rule file that gives every text with the word ``row`` these points, in one rename."""
    _replace(path, f"rules: [{{name: all, contains: row, points: {value!r}}}]\n".encode())


def write_words(path: Path, word: str) -> None:
    """A word list of one word, in one rename."""
    _replace(path, f"{word}\n".encode())


def write_model(path: Path, value: float, megabytes: float) -> None:
    """A file of so many megabytes that scores `value`, in one rename."""
    draft = path.with_name(f".{path.name}")
    save_file({"w": np.full(int(megabytes * 2**17), value)}, draft)
    os.replace(draft, path)


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    os.replace(draft, path)


class Served:
    """``verl-reward serve`` in a process of its own, ended by `stop`.

    Args:
        folder: where its ``run.yaml`` lies and it runs; plugins in it are found.
        words: further arguments.
    """

    def __init__(self, folder: Path, words: Sequence[str] = ()) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("VERL_REWARD")}
        path = [str(folder), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": str(folder / "cache")}
        command = [sys.executable, "-m", "verl_core.cli.main", "serve", "run.yaml", *words]
        self.port = free_port()
        self._said = folder / "said.txt"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [*command, f"server.port={self.port}"],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def wait(self, seconds: float = 180.0) -> None:
        """Return when it is ready. Raises `SystemExit` where it never is."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                    return
            except (HTTPError, OSError):
                time.sleep(0.1)
        raise SystemExit(f"the server is not ready; it said:\n{self.said()}")

    def said(self) -> str:
        """All that it printed."""
        return self._said.read_text("utf-8")

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, the oldest first."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if any("serve_worker" in word for word in child.cmdline()):
                    found.append((child.create_time(), child))
        return [child for _, child in sorted(found, key=lambda pair: pair[0])]

    def stop(self) -> int:
        """Its exit code after SIGTERM; it is killed where it does not end within a minute."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                for worker in self.workers():
                    worker.kill()
                self.process.kill()
        return self.process.wait()


class Answer(NamedTuple):
    """A status (0: the connection ended first) and the body."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks over connections that are kept, as many as there are questions at once.

    A question is asked once: where the connection ends before the answer is there, the status is 0.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer to one request; `body` is JSON, or bytes that are."""
        content = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
        lines += ["Content-Type: application/json"] if content else []
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        try:
            connection = self._kept() or await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return Answer(0, b"")
        reader, writer = connection
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            answer, keeps = await _read(reader)
        except (OSError, EOFError, ValueError):
            writer.close()
            return Answer(0, b"")
        if keeps:
            self._idle.append(connection)
        else:
            writer.close()
        return answer

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """An idle connection that the other side has not ended."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not _is_ended(writer):
                return reader, writer
            writer.close()
        return None

    def close(self) -> None:
        """End the connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def _is_ended(writer: asyncio.StreamWriter) -> bool:
    """Whether the end of the connection has come, though the loop has not read it yet."""
    here = writer.get_extra_info("socket")
    with socket.socket(fileno=os.dup(here.fileno())) as peeking:
        try:
            return peeking.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


async def _read(reader: asyncio.StreamReader) -> tuple[Answer, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    return Answer(int(head[0].split()[1]), body), fields.get("connection") != "close"


async def at_rate(
    rate: float, seconds: float, once: Callable[[float], Any], most: int | None = None
) -> int:
    """Begin ``once(due)`` `rate` times a second for `seconds`, however long each takes, and wait
    for all of them; `due` is when it should have begun (`time.perf_counter`).

    Gives how many were left out, because `most` were under way.
    """
    begin, under_way, skipped = time.perf_counter(), set[Any](), 0
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if most is not None and len(under_way) >= most:
            skipped += 1
            continue
        task = asyncio.ensure_future(once(due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return skipped


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
