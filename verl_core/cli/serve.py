"""``verl-reward serve``: a config's rewards, scored over HTTP, and their weights; no training."""

from __future__ import annotations

import functools
import gc
import logging
import math
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import socket

    from verl_core.config import RunConfig
    from verl_core.control import ControlServer, ControlState
    from verl_core.control.connection import Limits
    from verl_core.control.logs import LogForm
    from verl_core.control.metrics.figures import Share
    from verl_core.control.run import RunSource
    from verl_core.control.scoring.admission import ScoringLimits
    from verl_core.rewards import RewardEngine
    from verl_core.rewards.build import NodeFactory
    from verl_core.trainer.interrupt import Heard

logger = logging.getLogger(__name__)

_SEVERAL = (
    "several workers score here, and none knows what the others score: curves and samples are shown"
    " by a server of one (`server.workers=1`), and the counts of a mount are those of one worker"
)
_LINGER_SECONDS = 1.0
_KILL_SECONDS = 5.0  # beyond the grace, for closing providers


def command(
    config: Annotated[
        Path | None, typer.Argument(metavar="[RUN.YAML]", help="The run's config.")
    ] = None,
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
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes that score, with the same weights; by default server.workers (1).",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="In the place of a config: show a run's folder, and change nothing in it.",
        ),
    ] = None,
) -> None:
    """Score responses over HTTP with a config's rewards, until Ctrl-C, SIGTERM or SIGHUP.

    POST /api/v1/reward/score takes rows and gives each mount's score and the fused reward;
    /get_reward and /remote_rm are the same for OpenRLHF and slime; /docs lists all routes.
    GET /readyz is 200 once every mount is loaded, in every worker. The page at / shows the
    weights, the mounts, and what was scored.

    Weights, pins and their history are kept, and are there again at the next start; a change is
    seen by the next request of every worker. Told to stop, it takes no new connections, finishes
    what is under way (server.drain seconds at most), and exits with 0.

    Example: verl-reward serve examples/customer-service/run.yaml server.port=8001 --workers 2
    """
    from verl_core.cli.serve_run import serve_folder, settings_only
    from verl_core.config import load_run_config
    from verl_core.trainer.display.steady import steady_streams
    from verl_core.trainer.interrupt import stops_raise

    if run is not None:
        with steady_streams(), stops_raise():
            serve_folder(run, settings_only(config, overrides, state))
        return
    if config is None:
        raise _nothing_to_serve()
    given = [*(overrides or ()), *(() if workers is None else (f"server.workers={workers}",))]
    cfg = load_run_config(config, given)
    with steady_streams(), stops_raise() as heard:
        path = _folder(cfg, state) / "weights.db"
        if cfg.server.workers == 1:
            _serve(cfg, path, heard)
        else:
            _supervise(cfg, path, config, given, heard)


def _nothing_to_serve() -> Exception:
    from verl_reward_sdk.errors import ConfigError

    return ConfigError(
        "there is nothing to serve",
        hint="name a run's config, as in verl-reward serve run.yaml, or a run's folder: --run DIR",
    )


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


class Serving:
    """A config's engine and its server, in this process.

    Args:
        cfg: the run.
        path: its ``weights.db``.
        facts: what every line of the JSON log tells.
    """

    def __init__(self, cfg: RunConfig, path: Path, facts: dict[str, Any] | None = None) -> None:
        from verl_core.control.logs import Logs
        from verl_core.plugins import PluginRegistry

        self.cfg, self.path = cfg, path
        self.logs = Logs(cfg.server.log, facts)
        self.registry = PluginRegistry()
        self.status: dict[str, Any] = {"loaded": False, "draining": False}
        self.engine: RewardEngine
        self.server: ControlServer | None = None

    def open(self, stack: ExitStack, *, run_id: str | None = None, shared: bool = False) -> None:
        """Check everything; load nothing heavy. `stack` closes it.

        Args:
            run_id: by default the run that wrote `path` last, or a new name.
            shared: `path` is meant to be open in other processes too.
        """
        from verl_core.control.token import tokens_from_environment
        from verl_core.rewards import RewardEngine
        from verl_core.rewards.persistence import newest_run

        stack.enter_context(self.logs)
        with _located(self.cfg):
            self.registry.load_extensions(self.cfg.plugins)
            self.engine = engine = RewardEngine.from_config(
                self.cfg.rewards(),
                registry=self.registry,
                node_factory=_node_factory(self.cfg),
                run_id=run_id or newest_run(self.path) or f"{self.cfg.name}-{secrets.token_hex(3)}",
                store_path=self.path,
                store_shared=shared,
            )
        stack.callback(engine.close)
        self.logs.hide([*tokens_from_environment(), *engine.secrets])
        assert engine.store is not None
        engine.store.subscribe(
            lambda before, after: self.registry.notify(
                "verl_reward_weights_changed", before=before, after=after
            )
        )

    def listen(
        self,
        stack: ExitStack,
        *,
        listener: socket.socket | None = None,
        cluster: dict[str, Any] | None = None,
        share: Share | None = None,
        early: bool = True,
    ) -> None:
        """Take the port, answer, and load the mounts. `stack` ends it.

        Args:
            listener: another process's socket, in the place of one of its own.
            cluster: what is known of all workers, where this is one: ``ready``, and more.
            share: this worker's part of the figures.
            early: answer, as not ready, before the mounts are loaded.
        """
        from verl_core.control import ControlServer

        host, port = self.cfg.server.host, self.cfg.server.port
        with _located(self.cfg):
            state = self._state(cluster, share)
            limits = _connection_limits(self.cfg)
            server = ControlServer(state, host, port, limits=limits, listener=listener)
            self.server = server
            if early:
                stack.enter_context(server)
                self._told_loading(listener)
            self.engine.setup()
            _settle()
            self.status["loaded"] = True
            if not early:
                stack.enter_context(server)

    def _told_loading(self, listener: socket.socket | None) -> None:
        if listener is None and self.server is not None:
            said = f"Loading {len(self.engine.mounts)} mounts; {self.server.url} answers"
            _say(said, self.cfg.server.log)

    def _run(self, *, several: bool) -> RunSource:
        """What the page shows of what is scored: nothing where each of several workers would show
        its own part."""
        from verl_core.control.run import NoRun, Recorder

        if several:
            return NoRun(_SEVERAL, name=self.cfg.name)
        return Recorder.of(self.engine, name=self.cfg.name)

    def _state(self, cluster: dict[str, Any] | None, share: Share | None) -> ControlState:
        from verl_core.control import ControlState
        from verl_core.control.metrics.figures import Share
        from verl_core.integrations.openrlhf_server import served_router
        from verl_core.integrations.slime import slime_router
        from verl_core.rewards.lease_book import LINGER, LeaseBook

        def status() -> dict[str, Any]:
            ready = self.status["loaded"] and not self.status["draining"]
            others = dict(cluster or {})
            return {**others, **self.status, "ready": ready and others.get("ready", True)}

        rewards, engine = self.cfg.rewards(), self.engine
        assert engine.store is not None
        return ControlState(
            run_id=engine.store.run_id,
            store=engine.store,
            leases=LeaseBook(
                engine.store,
                engine.lease,
                generations=engine,
                linger=0.0 if cluster is None else LINGER,
                ttl=self.cfg.server.lease_ttl,
            ),
            providers=engine.describe,
            reload=engine.reload,
            status=status,
            routes=self.registry.routes(),
            allowed_hosts=self.cfg.server.allowed_hosts,
            run=self._run(several=cluster is not None),
            engine=engine,
            scoring=scoring_limits(self.cfg),
            share=share or Share(),
            scorers={
                "/get_reward": functools.partial(
                    served_router, rewards=rewards, path="/get_reward"
                ),
                "/remote_rm": functools.partial(slime_router, rewards=rewards, path="/remote_rm"),
            },
        )


def _settle() -> None:
    """Take what was loaded out of the collector's sight: it stays as long as the process, and
    looking through it again and again would hold requests up for 100 ms at a time."""
    gc.collect()
    gc.freeze()


def scoring_limits(cfg: RunConfig) -> ScoringLimits:
    """What ``server:`` allows scoring to take."""
    from verl_core.control.scoring.admission import ScoringLimits

    server = cfg.server
    return ScoringLimits(
        requests=server.max_requests,
        rows=server.max_rows,
        body_bytes=server.max_body_mib << 20,
        deadline=server.deadline,
    )


def _connection_limits(cfg: RunConfig) -> Limits:
    from verl_core.control.connection import Limits

    return Limits(
        connections=max(128, 2 * cfg.server.max_requests),
        grace_seconds=cfg.server.drain,
        linger_seconds=min(_LINGER_SECONDS, cfg.server.drain),
    )


def _serve(cfg: RunConfig, path: Path, heard: Heard) -> None:
    serving = Serving(cfg, path)
    with ExitStack() as stack:
        serving.open(stack)
        serving.listen(stack)
        assert serving.server is not None
        assert serving.engine.store is not None
        try:  # a signal may come as soon as the first word is out
            _announce(serving.engine.store.run_id, serving.server.url, path, cfg.server.log)
            serving.server.wait(heard.check)
        except KeyboardInterrupt:
            serving.status["draining"] = True
            _say(_stopping(cfg), cfg.server.log)


def _stopping(cfg: RunConfig) -> str:
    return f"Stopping: finishing what is under way, {cfg.server.drain:g} s at most."


def _say(text: str, form: LogForm) -> None:
    """On stdout for people, or as a line of the log, so that nothing else is mixed in with it."""
    from verl_core.cli.display import console

    if form == "json":
        logger.info("%s", text)
    else:
        console().print(text, highlight=False, markup=False, soft_wrap=True)


def _announce(run_id: str, url: str, path: Path, form: LogForm, workers: int = 1) -> None:
    from rich.text import Text

    from verl_core.cli.display import console

    if form == "json":
        logger.info("run %s is served at %s", run_id, url, extra={"fields": {"run_id": run_id}})
        return
    by = f" by {workers} workers" if workers > 1 else ""
    console().print(
        Text.assemble(
            "Run ",
            (run_id, "bold"),
            f" is served at {url}{by} (/docs lists the routes)\n"
            f"Its weights are kept in {path}. Ctrl-C stops it.",
        ),
        soft_wrap=True,
    )


def _supervise(
    cfg: RunConfig, path: Path, config: Path, overrides: list[str], heard: Heard
) -> None:
    """Serve with several workers; this process only watches them."""
    from verl_core.cli.serve_worker import digest_of
    from verl_core.control.listen import listen, url_of
    from verl_core.control.supervisor import Supervisor
    from verl_core.control.token import token_from_environment
    from verl_reward_sdk.errors import ConfigError

    server = cfg.server
    if sys.platform == "win32":
        raise ConfigError(
            "several workers share a socket, which Windows does not do here",
            path="server.workers",
            hint="set server.workers=1",
        )
    digest = digest_of(config)
    serving = Serving(cfg, path)
    with ExitStack() as stack:
        serving.open(stack)  # so that what is wrong is told once, and the run has a name
        assert serving.engine.store is not None
        run_id = serving.engine.store.run_id
        with _located(cfg):
            listener = listen(
                server.host, server.port, has_token=token_from_environment() is not None
            )
        stack.callback(listener.close)
        # Where the workers count; it has no name, and is gone with the last of them.
        figures = stack.enter_context(tempfile.TemporaryFile())
        url = url_of(server.host, listener)
        part = {
            "config": str(config.absolute()),
            "digest": digest,
            "overrides": overrides,
            "store": str(path.absolute()),
            "run_id": run_id,
            "figures": figures.fileno(),
            "workers": server.workers,
        }
        supervisor = Supervisor(
            [sys.executable, *_interpreter_options(), "-m", "verl_core.cli.serve_worker"],
            part,
            listener,
            server.workers,
            grace=math.ceil(server.drain + 2 * _LINGER_SECONDS + _KILL_SECONDS),
            say=functools.partial(_warn, form=server.log),
            shared=[figures.fileno()],
        )
        stack.callback(supervisor.stop)
        count = f"{len(serving.engine.mounts)} mounts in {server.workers} workers"
        _say(f"Loading {count}; {url} answers", server.log)
        try:
            supervisor.run(
                lambda: _announce(run_id, url, path, server.log, server.workers), heard.check
            )
        except KeyboardInterrupt:
            _say(_stopping(cfg), server.log)


def _warn(text: str, form: LogForm) -> None:
    if form == "json":
        logger.warning("%s", text)
    else:
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _interpreter_options() -> list[str]:
    """Of Python, as this process was started with them: ``-W error`` and the like."""
    return [f"-W{option}" for option in sys.warnoptions]


def _node_factory(cfg: RunConfig) -> NodeFactory | None:
    """What builds `RewardNode`s, where the config has any: they need torch, nothing else does."""
    if all(mount.node_class is None for mount in cfg.reward):
        return None
    from verl_core.trainer.reward import TensorShelf
    from verl_core.trainer.setup import NodeFactory

    return NodeFactory(TensorShelf(), pays_kl=True)


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
