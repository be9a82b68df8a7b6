"""A column of texts in the forms in which conditions look at it, each made once a batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

_SURROGATE = re.compile("[\ud800-\udfff]")


class Texts:
    """B texts.

    Args:
        rows: B texts as they are.
    """

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = rows

    @cached_property
    def folded(self) -> list[str]:
        """B texts without regard to case."""
        return [row.casefold() for row in self.rows]

    @cached_property
    def encoded(self) -> list[bytes]:
        """B texts in UTF-8; half a surrogate pair, which UTF-8 cannot hold, becomes U+FFFD."""
        return [_SURROGATE.sub("\ufffd", row).encode() for row in self.rows]
