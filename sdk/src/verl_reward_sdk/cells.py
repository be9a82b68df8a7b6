"""Reading what a provider answered, cell by cell: each is a right number, or a text, or an error.

Nothing is converted that only looks like a number (numpy makes one of a complex number, of a time,
of the text ``"0.5"``), and nothing is read that a mask hides. Every `ContractError` from here names
the provider, the row, the value and what would have been right, and can be shown whatever the
value is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.errors import ContractError
from verl_reward_sdk.protocols import Bools, Floats

_PLAIN = frozenset({float, int, bool, np.float64, np.float32})
_PLAIN_OR_NONE = _PLAIN | {type(None)}
_LONGEST = 200


# -- numbers -------------------------------------------------------------------------------------


def column(values: object, n: int, name: str, provider: str) -> tuple[Floats, Bools]:
    """``(numbers, known)``, (n,) float64 and bool, both the caller's own; a cell that is None or
    masked is not known.

    Args:
        values: n cells: numbers, bools or None, or an array (or a tensor) of numbers.
        n: how many they must be.
        name: of the column, for errors.
        provider: its name, for errors.

    Raises:
        ContractError: another length or shape, or a cell that is no number.
    """
    if type(values) is np.ndarray and values.dtype == np.float64 and values.shape == (n,):
        return values.copy(), np.ones(n, dtype=bool)
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        values = list(values)
        if len(values) == n and not any(map(_is_nested, values)):
            return numbers(values, name, provider)
    array = _array(values, name, provider)
    if array.shape != (n,):
        raise ContractError(
            f"{name} has a wrong length",
            provider=provider,
            value=len(array) if array.ndim == 1 else array.shape,
            bound=f"{n} rows",
        )
    hidden: Bools | None = None
    if isinstance(array, np.ma.MaskedArray) and array.dtype.names is None:
        hidden, array = np.ma.getmaskarray(array), np.asarray(np.ma.getdata(array))
    if array.dtype.kind in "biuf":
        found, known = _float64(array), np.ones(n, dtype=bool)
    else:
        cells: list[object] = list(array)
        if hidden is not None:
            cells = [None if gone else cell for cell, gone in zip(cells, hidden, strict=True)]
        found, known = numbers(cells, name, provider)
    if hidden is not None:
        known &= ~hidden
    return found, known


def flags(values: object, n: int, name: str, provider: str) -> Bools:
    """(n,) bool: true where a cell is true and known.

    Raises:
        ContractError: as `column`; or a cell is neither true nor false.
    """
    if type(values) is np.ndarray and values.dtype == np.bool_ and values.shape == (n,):
        copied: Bools = values.copy()
        return copied
    found, known = column(values, n, name, provider)
    odd = np.flatnonzero(known & (found != 0) & (found != 1))
    if len(odd):
        raise ContractError(
            f"{name} is neither true nor false",
            provider=provider,
            row=int(odd[0]),
            value=float(found[odd[0]]),
            bound="true or false",
        )
    known &= found == 1
    return known


def numbers(cells: Sequence[object], name: str, provider: str) -> tuple[Floats, Bools]:
    """``(values, present)`` of cells that are ``float | None``; a None is not present.

    Raises:
        ContractError: a cell is no number.
    """
    kinds = set(map(type, cells))
    try:
        if kinds <= _PLAIN:  # numpy converts them all at once, to the same bits
            return np.array(cells, dtype=np.float64), np.ones(len(cells), dtype=bool)
        if kinds <= _PLAIN_OR_NONE:
            known = np.array([cell is not None for cell in cells], dtype=bool)
            return np.where(known, np.array(cells, dtype=np.float64), 0.0), known
    except OverflowError:
        pass  # a whole number beyond float64: found, and named, below
    values, present = np.zeros(len(cells)), np.ones(len(cells), dtype=bool)
    for row, cell in enumerate(cells):
        try:
            number = _number(cell)
        except Exception as error:  # a boundary: a cell is somebody else's object
            raise ContractError(
                _no_number(name, error),
                provider=provider,
                row=row,
                value=shown(cell),
                bound="float | None",
            ) from error
        if number is None:
            present[row] = False
        else:
            values[row] = number
    return values, present


def unmasked(values: Any) -> Any:
    """`values` with NaN where they are masked; what has no mask, or holds no numbers, as it is."""
    if isinstance(values, (list, tuple)) and any(map(_is_masked, values)):
        return [math.nan if _is_masked(cell) else cell for cell in values]
    if not isinstance(values, np.ma.MaskedArray) or values.dtype.kind not in "biufO":
        return values
    hidden, cells = np.ma.getmaskarray(values), np.asarray(np.ma.getdata(values))
    if values.dtype.kind == "O":
        cells = cells.copy()
        cells[hidden] = math.nan
        return cells
    return np.where(hidden, np.nan, _float64(cells))


def _array(values: object, name: str, provider: str) -> npt.NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        return values
    try:
        return np.asarray(values)
    except Exception as error:  # a boundary: ragged, on another device, somebody else's object
        raise ContractError(
            f"{name} cannot be read ({type(error).__name__})",
            provider=provider,
            value=type(values).__name__,
            bound="one number a row",
        ) from error


def _float64(array: npt.NDArray[Any]) -> Floats:
    """A copy; a wider float beyond float64 becomes infinite, whatever numpy is told to do then."""
    with np.errstate(over="ignore"):
        return array.astype(np.float64)


def _is_nested(cell: object) -> bool:
    return isinstance(cell, (list, tuple)) or (isinstance(cell, np.ndarray) and cell.ndim > 0)


def _is_masked(cell: object) -> bool:
    if not isinstance(cell, np.ma.MaskedArray) or cell.ndim != 0:
        return False
    return cell is np.ma.masked or bool(np.ma.getmaskarray(cell))


def _number(cell: Any) -> float | None:
    """`cell` as a float, None where there is none. Raises whatever it may where it is no number."""
    if cell is None or _is_masked(cell):
        return None
    # The types' own conversions: those of a subclass are somebody else's code.
    if isinstance(cell, float):
        return float.__float__(cell)
    if isinstance(cell, int):
        return int.__float__(cell)
    if isinstance(cell, (str, bytes)) or getattr(cell, "ndim", None) != 0:
        raise TypeError(type(cell).__name__)
    array = np.asarray(cell)  # a number of numpy's, or an array or tensor of no dimension
    if array.ndim != 0 or array.dtype.kind not in "biuf":
        raise TypeError(str(array.dtype))
    return float(_float64(array))


def _no_number(name: str, error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"{name} holds a number that is beyond float64"
    return "the score is no number" if name == "scores" else f"{name} holds no numbers"


# -- texts ---------------------------------------------------------------------------------------


def texts(
    told: Mapping[int, str], n: int, name: str, provider: str, *, or_none: bool = False
) -> dict[int, str]:
    """Row -> text, as plain ints and texts.

    Args:
        told: what the provider answered.
        n: rows there are.
        name: of the mapping, for errors.
        provider: its name, for errors.
        or_none: a None may stand for no text, and is left out.

    Raises:
        ContractError: it is no mapping, a key is no row of n, or a value is no text.
    """
    if type(told) is dict and not told:
        return {}
    check_mapping(told, name, provider)
    found: dict[int, str] = {}
    for row, text in told.items():
        if not _is_row(row, n):
            raise ContractError(
                f"{name} names a row that is not in the batch",
                provider=provider,
                value=shown(row),
                bound=f"0 to {n - 1}",
            )
        if isinstance(text, str):
            found[int(row)] = str.__str__(text)  # a subclass's own is somebody else's code
        elif text is not None or not or_none:
            raise ContractError(
                f"{name} holds what is no text",
                provider=provider,
                row=int(row),
                value=shown(text),
                bound="a text",
            )
    return found


def check_mapping(mapping: object, name: str, provider: str) -> None:
    """Raise `ContractError` where `mapping` is none."""
    if not isinstance(mapping, Mapping):
        raise ContractError(
            f"{name} is no mapping",
            provider=provider,
            value=type(mapping).__name__,
            bound="a dict",
        )


def check_name(name: object, provider: str) -> None:
    """Raise `ContractError` where the name of a further column is no text for UTF-8."""
    if isinstance(name, str) and not any("\ud800" <= c <= "\udfff" for c in name):
        return
    raise ContractError(
        "extras has a name that is no text",
        provider=provider,
        value=shown(name),
        bound="a text that UTF-8 can hold",
    )


def _is_row(row: object, n: int) -> bool:
    if isinstance(row, (bool, np.timedelta64)):  # numpy counts the latter among its integers
        return False
    return isinstance(row, (int, np.integer)) and bool(0 <= row < n)


# -- in errors -----------------------------------------------------------------------------------


class _Shown:
    """Somebody else's value as a short text."""

    def __init__(self, value: object) -> None:
        try:
            text = repr(value)
        except Exception as error:  # noqa: BLE001  (somebody else's, and not even to be shown)
            text = f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        self._text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

    def __repr__(self) -> str:
        return self._text


def shown(value: object) -> object:
    """`value` where it is plain and short, else a short text in its place: an error must be
    readable whatever it speaks of."""
    kind = type(value)
    if value is None or kind in (bool, float):
        return value
    if isinstance(value, int) and kind is int and value.bit_length() <= _LONGEST:
        return value
    if isinstance(value, (str, bytes)) and kind in (str, bytes) and len(value) <= _LONGEST:
        return value
    return _Shown(value)
