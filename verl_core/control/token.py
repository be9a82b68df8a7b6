"""The secrets that clients of a control plane show, and where they come from.

Two, so that what only looks and scores need not be able to change: see `verl_core.control.access`.
"""

from __future__ import annotations

import os

from verl_reward_sdk.errors import ConfigError

TOKEN_VARIABLE = "VERL_REWARD_TOKEN"
READ_TOKEN_VARIABLE = "VERL_REWARD_READ_TOKEN"


def token_from_environment() -> str | None:
    """The token that clients must show, or None where none is set.

    Raises:
        ConfigError: it cannot be sent in a header. The message does not repeat it.
    """
    return _token(TOKEN_VARIABLE)


def read_token_from_environment() -> str | None:
    """The token of clients that change nothing, or None where none is set.

    Raises:
        ConfigError: it cannot be sent in a header; it is the other token, or stands alone.
    """
    token = _token(READ_TOKEN_VARIABLE)
    if token is not None:
        check_tokens(_token(TOKEN_VARIABLE), token)
    return token


def tokens_from_environment() -> list[str]:
    """Both, as far as they are set: what no log may show."""
    return [token for token in (token_from_environment(), read_token_from_environment()) if token]


def client_token() -> str | None:
    """What a client shows: the token, or the read token where that is all it has."""
    return os.environ.get(TOKEN_VARIABLE) or os.environ.get(READ_TOKEN_VARIABLE) or None


def check_tokens(token: str | None, read_token: str | None) -> None:
    """Refuse a pair that would not protect what it seems to.

    Raises:
        ConfigError: the read token has no other beside it, or is the same.
    """
    if read_token is None:
        return
    if token is None:
        raise ConfigError(
            f"{READ_TOKEN_VARIABLE} is set, and {TOKEN_VARIABLE} is not: without it anybody may"
            " change the weights, with any token or none",
            hint=f"set {TOKEN_VARIABLE} too, or unset {READ_TOKEN_VARIABLE}",
        )
    if token == read_token:
        raise ConfigError(
            f"{READ_TOKEN_VARIABLE} and {TOKEN_VARIABLE} are the same: whoever may read could"
            " change the weights",
            hint="give them two secrets",
        )


def _token(variable: str) -> str | None:
    token = os.environ.get(variable) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            f"{variable} has a character that an HTTP header cannot carry",
            hint="use letters, digits and signs of ASCII, without spaces or line ends",
        )
    return token
