"""Media types that a body may be of, beside JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NDJSON = "application/x-ndjson"
"""A JSON value a line."""


def is_stream(scope: Mapping[str, Any]) -> bool:
    """Whether a request says that its body is lines, of any number."""
    return any(
        name == b"content-type" and value.lower().startswith(NDJSON.encode())
        for name, value in scope["headers"]
    )
