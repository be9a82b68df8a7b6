"""What the control plane shows and turns: handed over by a trainer or by ``verl-reward serve``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_core.control.metrics.figures import Share
from verl_core.control.run import NoRun, RunSource
from verl_core.control.scoring.admission import ScoringLimits
from verl_core.control.token import read_token_from_environment, token_from_environment
from verl_core.rewards.lease_book import LeaseBook

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.types import ASGIApp

    from verl_core.control.scoring.service import ScoreService
    from verl_core.rewards.engine import RewardEngine
    from verl_core.rewards.weights import WeightStore


def _nothing() -> dict[str, Any]:
    return {}


def _never() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Listening:
    """What listeners to ``GET …/weights/events`` may take.

    Args:
        listeners: at once; a further one is refused. Each holds one of the server's connections
            (`Limits.connections`) for as long as it likes, and others must stay free.
        heartbeat_seconds: between two signs of life to a listener that has nothing to hear.
        look_seconds: between two looks whether another process has changed the weights.
    """

    listeners: int = 32
    heartbeat_seconds: float = 15.0
    look_seconds: float = 0.25


@dataclass(frozen=True, kw_only=True)
class ControlState:
    """One run, as the control plane sees it. The callables are called from worker threads.

    Args:
        run_id: names the run in every answer.
        store: its weights.
        leases: those of groups, for workers elsewhere; by default a book over `store` alone, whose
            leases name no mounts.
        providers: a description of each mount, JSON-ready but for infinities, which become null.
        reload: looks at a mount's files, as `RewardEngine.reload`; None where no mount runs here.
        status: facts for ``/healthz``: ``ready`` (bool), ``step`` (int), and others.
        routes: prefix -> ASGI app of plugins, mounted behind the same guard.
        token: what clients must show as a bearer token; None on loopback only.
        read_token: what they must show at least, where they change nothing.
        allowed_hosts: further names under which clients may call, such as a proxy's.
        max_body: bytes of a request body, counted as they come; of scoring bodies: `scoring`'s.
        engine: scores ``/score``; None: nothing does.
        scoring: what that may take.
        cannot_score: why it does not score now, or None.
        scorers: further routes that score, of other trainers' shapes: path -> what makes its
            router. The path's bodies are limited as those of ``/score``.
        counted: whose scoring ``/metrics`` tells of; by default `engine`.
        share: this process's part of the figures, where there are several workers.
        listening: bounds of the listeners to changes of the weights.
        run: its figures and samples, for the page.
        read_only: why nothing may be changed, in words; None: it may.
        server_id: tells one start of the server from the next.
    """

    run_id: str
    store: WeightStore
    providers: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    reload: Callable[[str], Mapping[str, Any]] | None = None
    status: Callable[[], Mapping[str, Any]] = _nothing
    routes: Mapping[str, ASGIApp] = field(default_factory=dict)
    token: str | None = field(default_factory=token_from_environment, repr=False)
    read_token: str | None = field(default_factory=read_token_from_environment, repr=False)
    allowed_hosts: Collection[str] = ()
    max_body: int = 1 << 20
    engine: RewardEngine | None = None
    scoring: ScoringLimits = field(default_factory=ScoringLimits)
    cannot_score: Callable[[], str | None] = _never
    scorers: Mapping[str, Callable[[ScoreService], APIRouter]] = field(default_factory=dict)
    leases: LeaseBook = None  # type: ignore[assignment]  # never None once it is made
    counted: RewardEngine | None = None
    share: Share = field(default_factory=Share)
    listening: Listening = Listening()
    run: RunSource = field(default_factory=NoRun)
    read_only: str | None = None
    server_id: str = field(default_factory=lambda: secrets.token_hex(6))

    def __post_init__(self) -> None:
        if self.leases is None:
            object.__setattr__(self, "leases", LeaseBook(self.store))
        if self.counted is None:
            object.__setattr__(self, "counted", self.engine)

    def secrets(self) -> Iterable[str]:
        """The texts that no answer and no log may show."""
        tokens = [token for token in (self.token, self.read_token) if token is not None]
        return [*tokens, *(() if self.counted is None else self.counted.secrets)]
