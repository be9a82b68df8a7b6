"""docs/peers.md: one form for every trainer, and a test behind each cell of its tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "peers.md").read_text("utf-8")
TRAINERS = ("TRL", "OpenRLHF", "verl")
ROWS = ("abstain", "mask", "skip_update", "group scope", "token rewards")
#: A table of capabilities, and the comment behind it.
_TABLE = re.compile(
    r"^\| \| what becomes of it in (\w+) \| refused \|\n\|---\|---\|---\|\n((?:\|.*\n)+)"
    r"\n<!-- tests/peers/\n([\s\S]*?)-->",
    re.MULTILINE,
)
_CELL = re.compile(r"^([a-z_ ]+)(, refused)?: (.*?)(?=^[a-z_ ]+(?:, refused)?: |\Z)", re.M | re.S)
TABLES = {trainer: (rows, named) for trainer, rows, named in _TABLE.findall(PAGE)}


def cells(rows: str) -> dict[tuple[str, str], str]:
    """(row, ``""`` or ``", refused"``) -> text, without the cells that say there is nothing."""
    found = {}
    for line in rows.splitlines():
        name, carried, refused = (cell.strip() for cell in line.strip("|").split(" | "))
        row = re.match(r"\*\*(.+?)\*\*", name)
        assert row is not None, line
        found |= {(row[1], ""): carried, (row[1], ", refused"): refused}
    return {cell: text for cell, text in found.items() if text != "–"}


def functions(module: str) -> set[str]:
    """The names of a test file's tests."""
    text = (ROOT / "tests" / "peers" / f"{module}.py").read_text("utf-8")
    return set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))


def test_every_trainer_has_a_table_of_the_same_rows():
    assert tuple(TABLES) == TRAINERS
    for rows, _ in TABLES.values():
        assert tuple(re.findall(r"^\| \*\*(.+?)\*\*", rows, re.MULTILINE)) == ROWS


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_cell_has_tests_that_are_there(trainer):
    rows, named = TABLES[trainer]
    tests = {(row, refused): text for row, refused, text in _CELL.findall(named)}
    assert set(tests) == set(cells(rows))
    for cell, text in tests.items():
        entries = re.findall(r"(\w+)::(\w+)", text)
        assert len(entries) == len(text.strip().split(",")), f"{cell}: {text}"
        for module, function in entries:
            assert function in functions(module), f"{cell}: {module} has no {function}"
