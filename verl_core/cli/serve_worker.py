"""One of the workers of ``verl-reward serve --workers N``: started by it, and by nobody else.

Its part comes from stdin as JSON; see `verl_core.control.supervisor`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from verl_core.cli.errors import run
from verl_reward_sdk.errors import ConfigError


def digest_of(config: Path) -> str:
    """Of a config's bytes: a worker that is started later must have the same."""
    return hashlib.sha256(config.read_bytes()).hexdigest()


class Link:
    """The line to the supervisor.

    Args:
        end: this worker's.
        status: what the supervisor tells is put here.
    """

    def __init__(self, end: socket.socket, status: dict[str, Any]) -> None:
        self._end, self._status = end, status
        threading.Thread(target=self._listen, name="verl-reward-link", daemon=True).start()

    def say_ready(self) -> None:
        """This worker's mounts are loaded."""
        with suppress(OSError):
            self._end.sendall(b'{"ready": true}\n')

    def _listen(self) -> None:
        with self._end.makefile("rb") as lines:
            try:
                for line in lines:
                    self._status.update(json.loads(line))
            except (OSError, ValueError):
                pass
        os.kill(os.getpid(), signal.SIGTERM)  # the supervisor is gone: nobody would end us


def work(part: Mapping[str, Any]) -> None:
    """Serve until a signal comes."""
    from verl_core.cli.serve import Serving
    from verl_core.config import load_run_config
    from verl_core.control.listen import adopt
    from verl_core.control.metrics.figures import Share
    from verl_core.trainer.interrupt import stops_raise

    config = Path(part["config"])
    with stops_raise() as heard, ExitStack() as stack:
        listener = adopt(part["listener"])
        status: dict[str, Any] = {"ready": False}
        link = Link(socket.socket(fileno=part["link"]), status)
        if digest_of(config) != part["digest"]:
            raise ConfigError(
                "the config was changed while it is served",
                file=str(config),
                hint="start `verl-reward serve` anew, or put the config back",
            )
        cfg = load_run_config(config, part["overrides"])
        serving = Serving(cfg, Path(part["store"]), {"worker": part["number"]})
        share = Share(part["figures"], part["number"] - 1, part["workers"])
        try:
            serving.open(stack, run_id=part["run_id"], shared=True)
            serving.listen(
                stack, listener=listener, cluster=status, share=share, early=part["early"]
            )
            link.say_ready()
            assert serving.server is not None
            serving.server.wait(heard.check)
        except KeyboardInterrupt:
            serving.status["draining"] = True


if __name__ == "__main__":
    sys.exit(run(lambda: work(json.load(sys.stdin))))
