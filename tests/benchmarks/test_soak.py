"""The soak: its checks find what is wrong, and for a minute nothing is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def kit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_ledger", FOLDER / "soak_ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["soak_ledger"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Case:
    """A ledger in which all is well: two revisions, two versions of a file, one lease."""

    def __init__(self, kit: ModuleType) -> None:
        self.kit = kit
        self.ledger = kit.Ledger()
        line = self.ledger.files["tone"] = kit.Timeline()
        line.add(1, 0.0, 0.0)
        line.add(2, 20.0, 20.5)
        self.ledger.changes.append(kit.Change(1, 10.0, 10.5, {"tone": 2.0}, 2))
        self.ledger.leases["l"] = (5.0, 5.5, 1)
        self.ledger.kills.append((30.0, 30.1))
        self.ledger.repairs.append((30.0, 33.0))
        self.history = [
            {"revision": 1, "reason": None, "before": {}, "after": {"tone": 1.0}},
            {"revision": 2, "reason": "change 1", "before": {"tone": 1.0}, "after": {"tone": 2.0}},
        ]
        self.show(1.0, 2.0, 1, 1)
        self.show(10.2, 10.3, 1, 1)  # the change is on its way: either is right
        self.show(10.2, 10.3, 2, 1)
        self.show(20.2, 20.4, 2, 2)
        self.show(25.0, 26.0, 1, 1, lease="l")

    def show(
        self, sent: float, answered: float, revision: int, version: int, lease: str | None = None
    ) -> None:
        weights = {"tone": float(revision)}
        self.ledger.answers.append(
            self.kit.Shown(sent, answered, lease, revision, weights, {"tone": version})
        )

    def found(self, blocking: bool = True) -> list[str]:
        found: list[str] = self.ledger.violations(self.history, {"tone"} if blocking else set())
        return found


def test_a_soak_in_which_all_is_well_has_no_violation(kit: ModuleType) -> None:
    case = Case(kit)
    case.ledger.lost.append(("a score", 29.0, 30.2))
    case.ledger.ended.append((29.0, 34.0, "l2"))
    case.show(30.0, 31.0, 2, 2)
    assert case.found() == []


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ((1.0, 2.0, 2, 1), "revision 2 at"),  # before it was asked for
        ((11.0, 12.0, 1, 1), "revision 1 at"),  # when the next had been accepted
        ((11.0, 12.0, 7, 1), "revision 7 at"),
        ((11.0, 12.0, 2, 2), "not in force yet"),
        ((21.0, 22.0, 2, 1), "replaced 0.500 s before"),
        ((21.0, 22.0, 2, 9), "not in force yet"),
        ((25.0, 26.0, 2, 1, "l"), "under a lease of revision 1"),
        ((25.0, 26.0, 1, 2, "l"), "lease l: {'tone': 1}, then {'tone': 2}"),
    ],
)
def test_a_wrong_answer_is_found(kit: ModuleType, shown: Any, said: str) -> None:
    case = Case(kit)
    case.show(*shown)
    assert any(said in line for line in case.found())


def test_a_background_file_may_be_late_but_not_for_long(kit: ModuleType) -> None:
    case = Case(kit)
    case.show(21.0, 22.0, 2, 1)
    assert case.found(blocking=False) == []
    case.show(20.5 + kit.LATE + 1.0, 60.0, 2, 1)
    assert len(case.found(blocking=False)) == 1


def test_weights_that_the_audit_log_does_not_have_are_found(kit: ModuleType) -> None:
    case = Case(kit)
    case.history[1]["after"] = {"tone": 3.0}
    assert any("with the weights {'tone': 2.0}" in line for line in case.found())
    assert any("other weights in the audit log" in line for line in case.found())


def test_a_lost_and_a_doubled_audit_entry_are_found(kit: ModuleType) -> None:
    case = Case(kit)
    entry = case.history.pop()
    assert any("change 1 stands 0 times" in line for line in case.found())
    case.history += [entry, {**entry, "revision": 3, "before": entry["after"]}]
    assert any("change 1 stands 2 times" in line for line in case.found())


def test_a_request_that_is_lost_without_a_kill_is_found(kit: ModuleType) -> None:
    for sent, ended in ((28.0, 29.9), (30.2, 31.0)):
        case = Case(kit)
        case.ledger.lost.append(("a score", sent, ended))
        assert any("a score was lost" in line for line in case.found())


def test_a_lease_that_ends_though_no_worker_was_started_is_found(kit: ModuleType) -> None:
    case = Case(kit)
    case.ledger.ended.append((34.0, 40.0, "l2"))
    assert any("no worker was started" in line for line in case.found())


def _run(script: str, *options: str) -> Any:
    result = subprocess.run(
        [sys.executable, str(FOLDER / script), "--json", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


def test_swap_load_tells_what_swaps_cost() -> None:
    found = _run(
        "swap_load.py", "--rows", "2", "--seconds", "2", "--turns", "1", "--megabytes", "1"
    )
    figures = {figure["name"]: figure for figure in found}
    assert figures["failed requests"]["ours"] == 0
    assert figures["swaps"]["ours"] >= 1
    assert figures["p99 of a request, a file replaced every second"]["target"] == 1.5


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_minute_of_everything_at_once_breaks_nothing() -> None:
    report = _run("soak.py", "--minutes", "1", "--rate", "10")
    assert report["violations"] == []
    assert report["answers"] > 100
    assert report["under leases"] > 10
    assert report["accepted"] > 10
    assert report["workers killed"] >= 1
    assert report["files replaced"] > 6
