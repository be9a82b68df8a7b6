"""A provider that does what its rows say: the worst that a provider can do. Worker processes import
this module."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from verl_reward_sdk import ConfigError, ProviderError, RewardProvider, RewardResult
from verl_reward_sdk.provider import AssetPath, ProviderConfig

# It cannot be ended by SIGTERM, and has left its parent's session (and so its process group).
_GRANDCHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "away":
    if os.fork():
        os._exit(0)
    os.setsid()
path = sys.argv[1]
with open(path + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(path + ".new", path)
time.sleep(600)
"""


class Strange(Exception):
    """Would write a file, were it ever unpickled."""

    def __reduce__(self) -> Any:
        return Path.write_text, (Path("unpickled"), "no")


class Obedient(RewardProvider[ProviderConfig]):
    """Follows its rows' orders."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(ProviderConfig())
        self.options = options
        self.count = 0

    def setup(self) -> None:
        if "starts" in self.options:
            with open(self.options["starts"], "a") as file:
                file.write("x")
        doomed = self.options.get("doomed")
        if doomed is not None and (doomed == "" or Path(doomed).exists()):
            os._exit(7)
        if self.options.get("slow"):
            time.sleep(600)
        if "refuses" in self.options:
            raise ConfigError("no such word list", file="words.txt", line=3, hint="write one")
        if "raises" in self.options:
            raise LookupError("nothing to load")

    def close(self) -> None:
        if "closed" in self.options:
            Path(self.options["closed"]).write_text("closed")

    def score(self, batch: Any) -> Any:
        if batch.responses == ("everything",) * 4:
            return everything()
        return [self.obey(*order.split(" ")) for order in batch.responses]

    def obey(self, word: str, *values: str) -> Any:
        return getattr(self, f"do_{word}")(*values)

    def do_score(self, value: str) -> float:
        return float(value)

    def do_pid(self) -> float:
        return float(os.getpid())

    def do_sleep(self, seconds: str = "600") -> float:
        time.sleep(float(seconds))
        return 1.0

    def do_tell(self, path: str) -> float:
        with open(f"{path}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            Path(path).write_text(str(os.getpid()))
            time.sleep(600)
        return 1.0

    def do_lock(self, path: str) -> float:
        with open(f"{path}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        return 1.0

    def do_hold_the_gil(self) -> float:
        return float(sum(range(10**12)))

    def do_crash(self) -> float:
        ctypes.string_at(0)
        return 1.0

    def do_exit(self, code: str) -> float:
        os._exit(int(code))

    def do_leave(self) -> float:
        sys.exit(4)

    def do_kill(self) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    def do_beget(self, path: str, how: str, then: str) -> float:
        subprocess.Popen([sys.executable, "-c", _GRANDCHILD, path, how])
        while not Path(path).exists():
            time.sleep(0.01)
        return float(self.obey(*then.split("+")))

    def do_raise(self) -> float:
        raise ZeroDivisionError("one\x1b by none")

    def do_strange(self) -> float:
        raise Strange("a class of its own")

    def do_fail_first(self, times: str) -> float:
        self.count += 1
        if self.count <= int(times):
            error = ProviderError("for now")
            error.retryable = True  # type: ignore[attr-defined]
            raise error
        return float(self.count)

    def do_function(self) -> Any:
        return lambda: 1.0

    def do_infinite(self) -> float:
        return float("inf")

    def do_print(self) -> float:
        print("through Python")
        print("an error", file=sys.stderr)
        print("the key is sk-12345")
        os.write(1, b"past Python \xff\n")
        subprocess.run(["echo", "from a child"], check=True)
        return 1.0

    def do_scribble(self) -> float:
        for path in Path("/proc/self/fd").iterdir():
            if path.is_symlink() and os.readlink(path).startswith("socket:"):
                os.write(int(path.name), b"\x7f\xff\xff\xff scribble")
        time.sleep(600)
        return 1.0

    def do_lines(self, count: str) -> float:
        os.write(1, b"a line\n" * int(count))
        return 1.0

    def do_flood(self) -> float:
        while True:
            os.write(1, b"a\n" * 30_000)

    def do_daemon(self, path: str, then: str) -> float:
        """One that has left its parents, its session and its environment."""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                line = f'echo $$ > "{path}.new"; mv "{path}.new" "{path}"; exec sleep 600'
                os.execve("/bin/sh", ["sh", "-c", line], {"PATH": os.environ["PATH"]})
            os._exit(0)
        os.wait()
        while not Path(path).exists():
            time.sleep(0.01)
        return float(self.obey(*then.split("+")))

    def do_block_twice(self) -> float:
        os.write(2, b"x" * 300_000)
        return 1.0


def everything() -> RewardResult:
    """All that an answer can hold."""
    return RewardResult(
        scores=[1 / 3, 0.0, -2.5, None],
        failures={2: "broke"},
        reasons={0: "fine", 3: "who knows"},
        token_scores=[[0.1, 0.2], [(0, 2, 0.5), (2, 5, 0.25)], None, []],
        severity=["none", True, None, "skip"],
        extras={"length": [1, 2, 3, 4]},
    )


class SetConfig(ProviderConfig):
    """Config with a file and a default."""

    words: AssetPath
    times: int = 2


class Configured(RewardProvider[SetConfig]):
    """Scores by the size of its file."""

    def score(self, batch: Any) -> list[float]:
        return [float(self.config.words.stat().st_size * self.config.times)] * len(batch)


def make(options: dict[str, Any]) -> Obedient:
    return Obedient(options)
