"""Who may do what: no token, the read token, the token.

| request | no token | read token | token |
|---|---|---|---|
| the open paths (see `verl_core.control.guard`) | yes | yes | yes |
| GET, HEAD, OPTIONS | | yes | yes |
| scoring: POST to ``/score`` and other trainers' routes; leases: POST, DELETE | | yes | yes |
| all else: weights, pins, rollback, reload, plugins' own changes | | | yes |

Scoring uses the rewards and changes none: a worker of another trainer needs it, and its lease, and
should not be able to turn the knobs.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable
from enum import IntEnum

from starlette.types import Scope

from verl_core.control.token import check_tokens

_LEASES = "/api/v1/reward/leases"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Access(IntEnum):
    """What a request may do; each includes those before it."""

    NONE = 0
    USE = 1
    ALL = 2


class Tokens:
    """The two tokens, compared so that the time tells nothing of them.

    Of each only a digest is kept, and what a client shows is held against both, whichever it is:
    the work is the same for a right and a wrong one, of any length.

    Args:
        token: None: none is asked for.
        read_token: None: there is none.

    Raises:
        ConfigError: the read token stands alone, or is the other.
    """

    def __init__(self, token: str | None, read_token: str | None) -> None:
        check_tokens(token, read_token)
        self._open = token is None
        # In the place of a token that is not there, one that nobody knows.
        self._all, self._use = (
            _digest((secrets.token_hex() if one is None else one).encode("ascii"))
            for one in (token, read_token)
        )

    def access(self, authorizations: Iterable[bytes]) -> Access:
        """What a request with these ``Authorization`` headers may do."""
        if self._open:
            return Access.ALL
        found = Access.NONE
        for value in authorizations:
            scheme, _, given = value.partition(b" ")
            shown = _digest(given.strip())
            is_all = hmac.compare_digest(shown, self._all)
            is_use = hmac.compare_digest(shown, self._use)
            if scheme.lower() == b"bearer":
                found = max(found, Access.ALL if is_all else Access.USE if is_use else Access.NONE)
        return found


def needed(scope: Scope, scoring: Collection[str]) -> Access:
    """What a request needs, beside those to open paths.

    Args:
        scoring: the paths whose POST scores.
    """
    if scope["type"] != "http":
        return Access.ALL
    method, path = scope["method"], scope["path"]
    if method in _SAFE or (method == "POST" and (path in scoring or path == _LEASES)):
        return Access.USE
    name = path.removeprefix(_LEASES + "/")
    if method == "DELETE" and name != path and "/" not in name:
        return Access.USE
    return Access.ALL


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
