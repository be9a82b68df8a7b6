"""The secret that clients of a control plane show, and where it comes from."""

from __future__ import annotations

import os

from verl_reward_sdk.errors import ConfigError

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
