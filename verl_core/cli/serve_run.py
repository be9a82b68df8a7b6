"""``verl-reward serve --run DIR``: the folder of a run, to look at; nothing in it is changed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_core.config.sections import ServerConfig
    from verl_core.control import ControlState


def settings_only(
    first: Path | None, others: Sequence[str] | None, state: Path | None
) -> ServerConfig:
    """The settings of the server out of what else was given; there is no config to read.

    Args:
        first: what stands where a config would: a setting too.
        others: further settings.
        state: of ``--state``, which keeps weights, and here none change.

    Raises:
        ConfigError: something else was given.
    """
    from pydantic import ValidationError

    from verl_core.config.overrides import parse_override
    from verl_core.config.sections import ServerConfig
    from verl_reward_sdk.errors import ConfigError

    if state is not None:
        raise ConfigError(
            "--state keeps weights that change, and with --run none do",
            path="--state",
            hint="leave one of them out",
        )
    words = [*([] if first is None else [str(first)]), *(others or ())]
    values = {}
    for number, word in enumerate(words, start=1):
        if "=" not in word:
            raise ConfigError(
                f"with --run nothing else is served, and {word!r} is no setting",
                hint="leave it out, or leave --run out to serve a config",
            )
        override = parse_override(word, number)
        if len(override.keys) != 2 or override.keys[0] != "server":
            raise ConfigError(
                f"{word!r} changes nothing: with --run only the server has settings",
                hint="such as server.port=8001 or server.host=127.0.0.1",
            )
        values[override.keys[1]] = override.value.unwrap()
    try:
        return ServerConfig.model_validate(values)
    except ValidationError as error:
        found = error.errors()[0]
        path = ".".join(["server", *map(str, found["loc"])])
        raise ConfigError(found["msg"], path=path, hint="see `verl-reward info --config`") from None


def serve_folder(folder: Path, settings: ServerConfig) -> None:
    """Show the run in `folder` until a signal comes.

    Raises:
        ConfigError: it is no run's folder, or its address cannot be had.
    """
    from verl_core.cli.display import console
    from verl_core.control import ControlServer

    out = console()
    with tempfile.TemporaryDirectory(prefix="verl-reward-") as scratch:
        state = folder_state(folder, Path(scratch), settings)
        try:
            with ControlServer(state, settings.host, settings.port) as server:
                out.print(
                    f"{folder} is shown at {server.url}; nothing in it is changed. Ctrl-C stops.",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )
                server.wait()
        except KeyboardInterrupt:
            out.print("Stopping.")
        finally:
            state.store.close()


def folder_state(folder: Path, scratch: Path, settings: ServerConfig) -> ControlState:
    """What the control plane shows of a folder. Its store is a copy, in `scratch`."""
    from verl_core.control import ControlState
    from verl_core.control.run import RunFiles
    from verl_core.control.run.finished import READ_ONLY, FinishedRun
    from verl_core.rewards.weights import WeightStore

    found = FinishedRun(folder)
    path = scratch / "weights.db"
    gates = [mount["name"] for mount in found.mounts if mount["role"] == "gate"]
    store = WeightStore(
        found.copy_weights(path), run_id=found.run_id, path=path, gates=gates, allow_zero=True
    )
    step = found.state.get("step")
    return ControlState(
        run_id=found.run_id,
        store=store,
        providers=lambda: found.mounts,
        status=lambda: {"ready": False} if step is None else {"ready": False, "step": step},
        allowed_hosts=settings.allowed_hosts,
        run=RunFiles(folder, kind="folder", facts=found.facts),
        read_only=READ_ONLY,
    )
