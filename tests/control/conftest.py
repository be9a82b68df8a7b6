from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.control import ControlServer, ControlState
from verl_core.control.connection import Limits
from verl_core.rewards.lease_book import LeaseBook
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightStore


def _beside(name: str) -> None:
    """Make a helper of this folder importable by its name, which pytest's import mode does not."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_beside("control_scoring")


class Served(ControlServer):
    """A real server of a real store on a free port, and a real client of it."""

    def __init__(
        self,
        path: Path | None = None,
        host: str = "127.0.0.1",
        limits: Limits | None = None,
        busy_seconds: float = 4.0,
        most_leases: int = 1000,
        **state: Any,
    ) -> None:
        config = {"accuracy": 1.0, "tone": Linear(2.0, 0.5, 10), "compliance": 1.0}
        self.store = WeightStore(
            config, run_id="demo", path=path, gates=["guard"], busy_seconds=busy_seconds
        )
        leases = LeaseBook(self.store, limit=most_leases)
        self.state = ControlState(run_id="demo", store=self.store, leases=leases, **state)
        super().__init__(self.state, host=host, port=0, limits=limits)
        # No TLS here: reading certificates would take longer than the requests.
        self.client = httpx.Client(base_url=self.url, verify=False, trust_env=False)

    def stop(self) -> None:
        self.client.close()
        super().stop()
        self.store.close()


@pytest.fixture(autouse=True)
def _no_token_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VERL_REWARD_TOKEN", "VERL_REWARD_READ_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def _servers() -> Iterator[list[Served]]:
    """Servers of one module. They take a quarter second to stop, so all stop at once."""
    servers: list[Served] = []
    yield servers
    stops = [threading.Thread(target=server.stop) for server in servers]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join()


@pytest.fixture
def serve(_servers: list[Served]) -> Callable[..., Served]:
    """Starts a `Served`."""

    def start(*args: Any, **kwargs: Any) -> Served:
        server = Served(*args, **kwargs)
        _servers.append(server)
        server.start()
        return server

    return start


@pytest.fixture
def scorer(plugin_site: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a `control_scoring.Scorer`."""
    kit = sys.modules["control_scoring"]
    kit.install(plugin_site)
    started: list[Any] = []

    def start(*args: Any, **kwargs: Any) -> Any:
        server = kit.Scorer(tmp_path, *args, **kwargs)
        started.append(server)
        server.start()
        return server

    yield start
    stops = [threading.Thread(target=server.stop) for server in started]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join()
