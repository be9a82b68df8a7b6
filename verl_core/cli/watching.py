"""``verl-reward weights watch``: each change of the weights as it is made."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import typer

from verl_core.control.client import ControlClient, NoAnswer
from verl_reward_sdk.errors import ConfigError

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0  # seconds before the connection is made again


class _Watch:
    """What was seen so far.

    Args:
        client: of the run's control plane.
        since: the revision after which changes are shown; None: from now on.
        as_json: print what the server says.
    """

    def __init__(self, client: ControlClient, since: int | None, as_json: bool) -> None:
        self._client, self._last, self._as_json = client, since, as_json
        self._run: str | None = None
        self.is_lost = False

    @property
    def has_begun(self) -> bool:
        """Whether the control plane has ever answered."""
        return self._run is not None

    def follow(self) -> None:
        """Show changes until the connection ends."""
        run = self._client.weights()["run_id"]
        if self._run not in (None, run):
            raise ConfigError(
                f"the control plane at {self._client.url} is run {run!r} now, and was run"
                f" {self._run!r}",
                hint="start `verl-reward weights watch` again to watch that one",
            )
        self._run, self.is_lost = run, False
        for found in self._client.changes(self._last):
            if self._as_json:
                typer.echo(json.dumps(found, ensure_ascii=False))
            elif self._last is None:
                typer.echo(_state(found))
            else:
                typer.echo(self._change(found))
            self._last = found["revision"]

    def lost(self, why: str) -> None:
        """Say once that the connection is gone."""
        if not self.is_lost:
            typer.echo(f"waiting for the control plane: {why}", err=True)
        self.is_lost = True

    def _change(self, found: Mapping[str, Any]) -> str:
        """The audit log's entry of a revision in one line."""
        from verl_core.trainer.weight_text import change_texts

        revision = found["revision"]
        entry = self._client.history(1, revision + 1)["history"][0]
        what = ", ".join(change_texts(entry["before"], entry["after"])) or "the same values"
        at = entry["time"].replace("T", " ").partition(".")[0]
        why = f" ({' '.join(entry['reason'].split())})" if entry["reason"] else ""
        since = f"from step {entry['effective_step']}"
        return f"{at} UTC  revision {revision}, {since}, {entry['author']}: {what}{why}"


def watch(client: ControlClient, since: int | None, *, as_json: bool) -> None:
    """Print each change, over lost connections, until Ctrl-C.

    Raises:
        NoAnswer: nobody answered at all.
        ConfigError: the server refused; another run answers after a while.
    """
    watched, wait = _Watch(client, since, as_json), _FIRST_WAIT
    try:
        while True:
            try:
                watched.follow()
                wait = _FIRST_WAIT
                watched.lost("it has ended the stream")
            except NoAnswer as error:
                if not watched.has_begun:
                    raise
                watched.lost(str(error))
            time.sleep(wait)
            wait = min(_LONGEST_WAIT, 2 * wait)
    except KeyboardInterrupt:
        return


def _state(found: Mapping[str, Any]) -> str:
    weights = ", ".join(f"{name} {weight:g}" for name, weight in found["weights"].items())
    return f"Run {found['run_id']}, revision {found['revision']}: {weights}"
