"""A traceback for the log, without the secrets that its errors may repeat."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from verl_core.config.secrets import longest_first, without


def traceback_of(error: BaseException, secrets: Iterable[str]) -> str:
    """As Python prints it, with a mark in the place of each secret."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return without(text, longest_first(secrets))
