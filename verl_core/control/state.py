"""What the control plane shows and turns: handed over by a trainer or by ``verl-reward serve``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_reward_sdk.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from verl_core.rewards.weights import WeightStore

TOKEN_VARIABLE = "VERL_REWARD_TOKEN"


def token_from_environment() -> str | None:
    """The token that clients must show, or None where none is set.

    Raises:
        ConfigError: it cannot be sent in a header. The message does not repeat it.
    """
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            f"{TOKEN_VARIABLE} has a character that an HTTP header cannot carry",
            hint="use letters, digits and signs of ASCII, without spaces or line ends",
        )
    return token


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class ControlState:
    """One run, as the control plane sees it. The callables are called from worker threads.

    Args:
        run_id: names the run in every answer.
        store: its weights.
        providers: a description of each mount, JSON-ready but for infinities, which become null.
        status: facts for ``/healthz``: ``ready`` (bool), ``step`` (int), and others.
        routes: prefix -> ASGI app of plugins, mounted behind the same guard.
        token: what clients must show as a bearer token; None on loopback only.
        allowed_hosts: further names under which clients may call, such as a proxy's.
        max_body: bytes of a request body, counted as they come.
    """

    run_id: str
    store: WeightStore
    providers: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    status: Callable[[], Mapping[str, Any]] = _nothing
    routes: Mapping[str, ASGIApp] = field(default_factory=dict)
    token: str | None = field(default_factory=token_from_environment, repr=False)
    allowed_hosts: Collection[str] = ()
    max_body: int = 1 << 20
