"""What the control plane shows and turns: handed over by a trainer or by ``verl-reward serve``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_core.control.token import token_from_environment

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from verl_core.rewards.weights import WeightStore


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class ControlState:
    """One run, as the control plane sees it. The callables are called from worker threads.

    Args:
        run_id: names the run in every answer.
        store: its weights.
        providers: a description of each mount, JSON-ready but for infinities, which become null.
        reload: looks at a mount's files, as `RewardEngine.reload`; None where no mount runs here.
        status: facts for ``/healthz``: ``ready`` (bool), ``step`` (int), and others.
        routes: prefix -> ASGI app of plugins, mounted behind the same guard.
        token: what clients must show as a bearer token; None on loopback only.
        allowed_hosts: further names under which clients may call, such as a proxy's.
        max_body: bytes of a request body, counted as they come.
    """

    run_id: str
    store: WeightStore
    providers: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    reload: Callable[[str], Mapping[str, Any]] | None = None
    status: Callable[[], Mapping[str, Any]] = _nothing
    routes: Mapping[str, ASGIApp] = field(default_factory=dict)
    token: str | None = field(default_factory=token_from_environment, repr=False)
    allowed_hosts: Collection[str] = ()
    max_body: int = 1 << 20
