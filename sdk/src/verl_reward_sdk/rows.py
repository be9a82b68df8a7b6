"""One column of a batch: a value a row, none of which can be changed through it.

Texts and numbers cannot be changed anyway, and arrays are kept read-only: such a column is a plain
tuple. One that holds lists, dicts or sets is `Rows`, which gives a copy of a row's value to whoever
asks for it: plain values, to be kept, changed or sent as JSON, while the batch stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar, overload

import numpy as np

T = TypeVar("T")


class Rows(Sequence[T]):
    """A sequence whose items are copied as they are read, as deep as lists, dicts and sets go."""

    __slots__ = ("_values",)

    def __init__(self, values: tuple[T, ...]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[T]: ...
    def __getitem__(self, row: int | slice) -> T | Sequence[T]:
        if isinstance(row, slice):
            return Rows(self._values[row])
        value: T = _copied(self._values[row])
        return value

    def __iter__(self) -> Iterator[T]:
        return (_copied(value) for value in self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Rows, tuple, list)):
            return self._values == tuple(uncopied(other))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # its values have none

    def __repr__(self) -> str:
        return repr(self._values)


# `type(...) is Rows` below: isinstance asks an abstract class, which takes 20 times as long.


def uncopied(column: Sequence[T]) -> Sequence[T]:
    """The values themselves, for reading only."""
    return column._values if type(column) is Rows else column


def picked(column: Sequence[T], index: Iterable[int]) -> Sequence[T]:
    """The given rows of a frozen column, in the given order: frozen as it is."""
    values = uncopied(column)
    taken = tuple([values[i] for i in index])
    return Rows(taken) if type(column) is Rows else taken


def joined(columns: Sequence[Sequence[T]]) -> Sequence[T]:
    """The rows of frozen columns, one after the other: frozen as they are."""
    rows = tuple(chain.from_iterable(map(uncopied, columns)))
    return Rows(rows) if any(type(column) is Rows for column in columns) else rows


def frozen(values: Sequence[T]) -> Sequence[T]:
    """`values` as a column that cannot be changed; arrays are copied where they are writeable."""
    plain = uncopied(values)
    if not isinstance(plain, tuple):
        plain = tuple(plain)
    kinds = set(map(type, plain))
    if any(issubclass(kind, np.ndarray) for kind in kinds):
        plain = tuple([_read_only(row) for row in plain])
    if any(issubclass(kind, _CONTAINERS) for kind in kinds):
        return Rows(plain)
    return plain


_CONTAINERS = (list, dict, set, tuple)


def _read_only(row: Any) -> Any:
    if not isinstance(row, np.ndarray) or not row.flags.writeable:
        return row
    row = row.copy()
    row.flags.writeable = False
    return row


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([_copied(inner) for inner in value])
    if isinstance(value, set):
        return set(value)
    if isinstance(value, np.ndarray) and value.flags.writeable:
        return value.copy()
    return value
