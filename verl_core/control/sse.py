"""Server-sent events as a client reads them (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def data_of(lines: Iterable[str]) -> Iterator[str]:
    """The data of each event in a stream's lines; comments and other fields are passed over, and an
    event that is cut off is none."""
    data: list[str] = []
    for line in lines:
        field, _, value = line.partition(":")
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        elif field == "data":
            data.append(value.removeprefix(" "))
