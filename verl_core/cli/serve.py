"""``verl-reward serve``: a config's rewards and their weights over HTTP, without training."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from verl_core.config import RunConfig
    from verl_core.control import ControlServer
    from verl_core.plugins import PluginRegistry
    from verl_core.rewards import RewardEngine
    from verl_core.rewards.build import NodeFactory


def command(
    config: Annotated[Path, typer.Argument(metavar="RUN.YAML", help="The run's config.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings that win over the file's, such as server.port=8001",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where weights.db is kept; a run's folder goes on with that run's weights. "
            "By default <output>/<name>.serve",
        ),
    ] = None,
) -> None:
    """Serve a config's rewards and their weights over HTTP until Ctrl-C, SIGTERM or SIGHUP.

    Weights, pins and their history are kept, and are there again at the next start.

    Example: verl-reward serve examples/customer-service/run.yaml server.port=8001
    """
    from verl_core.config import load_run_config
    from verl_core.trainer.display.steady import steady_streams
    from verl_core.trainer.interrupt import stops_raise

    cfg = load_run_config(config, overrides or ())
    with steady_streams(), stops_raise():
        _serve(cfg, _folder(cfg, state) / "weights.db")


def _folder(cfg: RunConfig, state: Path | None) -> Path:
    """Where the weights are kept: it can be made, or is there."""
    from verl_core.trainer.output_folder import check_output
    from verl_reward_sdk.errors import ConfigError

    if state is None:
        folder = Path(cfg.output) / f"{cfg.name}.serve"
        with _located(cfg):
            check_output(folder)
        return folder
    try:
        check_output(state)
    except ConfigError as error:
        raise ConfigError(error.message, path="--state", hint=error.hint) from error
    return state


def _serve(cfg: RunConfig, path: Path) -> None:
    from rich.text import Text

    from verl_core.cli.display import console
    from verl_core.plugins import PluginRegistry

    out = console()
    registry = PluginRegistry()
    status: dict[str, Any] = {"ready": False}
    with ExitStack() as stack:
        with _located(cfg):
            registry.load_extensions(cfg.plugins)
            engine = _engine(cfg, registry, path)
        stack.callback(engine.close)
        with _located(cfg):
            server = stack.enter_context(_server(cfg, engine, registry, status))
        out.print(
            f"Loading {len(engine.mounts)} mounts; {server.url} answers",
            highlight=False,
            markup=False,
        )
        with _located(cfg):
            engine.setup()
        status["ready"] = True
        assert engine.store is not None
        try:  # a signal may come as soon as the first word is out
            out.print(
                Text.assemble(
                    "Run ",
                    (engine.store.run_id, "bold"),
                    f" is served at {server.url} (/docs lists the routes)\n"
                    f"Its weights are kept in {path}. Ctrl-C stops it.",
                ),
                soft_wrap=True,
            )
            server.wait()
        except KeyboardInterrupt:
            out.print("Stopping.")


def _engine(cfg: RunConfig, registry: PluginRegistry, path: Path) -> RewardEngine:
    from verl_core.rewards import RewardEngine
    from verl_core.rewards.persistence import newest_run

    engine = RewardEngine.from_config(
        cfg.rewards(),
        registry=registry,
        node_factory=_node_factory(cfg),
        run_id=newest_run(path) or f"{cfg.name}-{secrets.token_hex(3)}",
        store_path=path,
    )
    assert engine.store is not None
    engine.store.subscribe(
        lambda before, after: registry.notify(
            "verl_reward_weights_changed", before=before, after=after
        )
    )
    return engine


def _node_factory(cfg: RunConfig) -> NodeFactory | None:
    """What builds `RewardNode`s, where the config has any: they need torch, nothing else does."""
    if all(mount.node_class is None for mount in cfg.reward):
        return None
    from verl_core.trainer.reward import TensorShelf
    from verl_core.trainer.setup import NodeFactory

    return NodeFactory(TensorShelf(), pays_kl=True)


def _server(
    cfg: RunConfig, engine: RewardEngine, registry: PluginRegistry, status: dict[str, Any]
) -> ControlServer:
    from verl_core.control import ControlServer, ControlState

    assert engine.store is not None
    state = ControlState(
        run_id=engine.store.run_id,
        store=engine.store,
        providers=engine.describe,
        reload=engine.reload,
        status=lambda: status,
        routes=registry.routes(),
        allowed_hosts=cfg.server.allowed_hosts,
    )
    return ControlServer(state, cfg.server.host, cfg.server.port)


@contextmanager
def _located(cfg: RunConfig) -> Iterator[None]:
    """Give an error that names a YAML path that path's file, line and column."""
    from verl_core.config.places import located
    from verl_reward_sdk.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        if error.path is None or error.file is not None:
            raise
        raise located(cfg.root, error) from error
