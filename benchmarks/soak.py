"""Fifteen minutes of everything at once, and not one wrong answer.

``verl-reward serve --workers 2`` with a rule file, a word list (`reload: blocking`) and a
model-like file (`background`), whose contents decide the scores. It is asked at a fixed rate, with
and without leases, while the weights are changed every second over HTTP, one of the files is
replaced every 5 s, and the younger worker is killed (-9) every 30 s. What must hold:

- Every answer has a revision that was in force between its request and itself, with the weights
  that the audit log has for it; its fused rewards are those weights of its scores.
- Its scores are those of one version of each file, which was in force then: of a blocking mount to
  the moment, of a background one at most 30 s late. Under one lease all answers have one revision
  and one version of each file. A lease may end early (410) only where a worker was started while
  it lived: that one never had its generations.
- Each accepted change stands once in the audit log, in order; one whose answer was lost at most
  once.
- Only requests under way in a worker that is killed are lost; no other status than 200 is seen.
- Memory is flat: the resident memory of the supervisor and of the worker that is never killed, the
  median of the last fifth of the samples against that of the second fifth, when caches and the
  history that the page shows have begun to fill.

It prints a report, and exits with 1 where one of these was broken.

    python benchmarks/soak.py [--minutes 15] [--rate 30] [--json]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from figures import machine, warn_if_busy
from serving import Served, install
from soak_ledger import Ledger
from soak_load import ASSETS, BLOCKING, MOST, Every, Files, Soak, write_folder

from verl_core.cli.errors import run as with_messages

#: Memory of late over memory of early; a short soak ends while caches still fill.
FLAT, FLAT_SHORT, SHORT = 1.05, 1.5, 5.0
_SAMPLE_SECONDS = 2.0
_SHOWN = 20


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="How long.")] = 15.0,
    rate: Annotated[float, typer.Option(min=1.0, help="Requests a second, 8 rows each.")] = 30.0,
    megabytes: Annotated[float, typer.Option(min=0.01, help="Of the model-like file.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="The report as a JSON object.")] = False,
) -> None:
    """Soak a server, and tell what it stood."""
    warn_if_busy()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(Path(folder), minutes, rate, megabytes)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        for name, value in report.items():
            if name != "violations":
                print(f"{name}: {value}")
        print(f"violations: {len(report['violations'])}")
        for line in report["violations"][:_SHOWN]:
            print(f"  {line}")
    if report["violations"]:
        raise typer.Exit(1)


def soak(folder: Path, minutes: float, rate: float, megabytes: float) -> dict[str, Any]:
    """The report of one soak."""
    ledger = Ledger()
    files = Files(folder, ledger, megabytes)
    install(folder)
    write_folder(folder)
    for _ in ASSETS:
        files.swap()
    served = Served(folder, ["--workers", "2"])
    memory = Memory(served)
    try:
        served.wait()
        running = Soak(served, files, ledger, rate)
        history = asyncio.run(_run(running, memory, minutes))
    finally:
        code = served.stop()
    violations = ledger.violations(history, BLOCKING)
    if code != 0:
        violations.append(f"it exited with {code}: {served.said()[-500:]}")
    if refused := running.statuses.get(429, 0):
        violations.append(f"{refused} scores were refused (429): --rate is beyond this machine")
    limit = FLAT if minutes >= SHORT else FLAT_SHORT
    violations += [
        f"memory of {name} grew from {early:.0f} to {late:.0f} MB"
        for name, (early, late) in memory.compared().items()
        if late > limit * early
    ]
    return _report(running, ledger, memory, minutes, violations, len(history))


async def _run(running: Soak, memory: Memory, minutes: float) -> list[dict[str, Any]]:
    sampling = asyncio.ensure_future(memory.sample())
    try:
        await running.run(60.0 * minutes, Every())
        return await running.history()
    finally:
        sampling.cancel()
        running.close()


class Memory:
    """Resident memory (RSS, from psutil) of the supervisor and each worker, every 2 s.

    Attributes:
        samples: process id -> megabytes, in order.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self.samples: dict[int, list[float]] = {}

    async def sample(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.to_thread(self._once)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _once(self) -> None:
        try:
            found = [psutil.Process(self._served.process.pid), *self._served.workers()]
        except psutil.NoSuchProcess:
            return
        for process in found:
            try:
                rss = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.samples.setdefault(process.pid, []).append(rss / 1e6)

    def compared(self) -> dict[str, tuple[float, float]]:
        """Name -> (median of the second fifth, of the last fifth), in megabytes."""
        supervisor = self._served.process.pid
        workers = {pid: all_of for pid, all_of in self.samples.items() if pid != supervisor}
        oldest = max(workers.values(), key=len)
        return {
            "the supervisor": _early_and_late(self.samples[supervisor]),
            "the worker that is never killed": _early_and_late(oldest),
        }


def _early_and_late(samples: Sequence[float]) -> tuple[float, float]:
    fifth = max(1, len(samples) // 5)
    return statistics.median(samples[fifth : 2 * fifth]), statistics.median(samples[-fifth:])


def _report(
    running: Soak,
    ledger: Ledger,
    memory: Memory,
    minutes: float,
    violations: list[str],
    entries: int,
) -> dict[str, Any]:
    took, lost = sorted(running.seconds), [what for what, _, _ in ledger.lost]
    accepted = sum(change.revision is not None for change in ledger.changes)
    return {
        "minutes": minutes,
        "answers": running.statuses.get(200, 0),
        "under leases": sum(shown.lease is not None for shown in ledger.answers),
        f"left out, {MOST} being under way": running.skipped,
        "p50 ms": round(1e3 * took[len(took) // 2], 1),
        "p99 ms": round(1e3 * took[int(0.99 * (len(took) - 1))], 1),
        "longest ms": round(1e3 * took[-1], 1),
        "weight changes": len(ledger.changes),
        "accepted": accepted,
        "audit entries": entries,
        "files replaced": sum(len(line.versions) for line in ledger.files.values()),
        "workers killed": len(ledger.kills),
        "seconds until replaced": round(max((b - a for a, b in ledger.repairs), default=0.0), 1),
        "requests lost with a killed worker": {
            what: lost.count(what) for what in sorted(set(lost))
        },
        "leases": len(ledger.leases),
        "leases ended early (410)": len(ledger.ended),
        "seconds a background file was late": round(max(ledger.behind, default=0.0), 2),
        "memory MB, early and late": {
            name: [round(value, 1) for value in pair] for name, pair in memory.compared().items()
        },
        "machine": machine(),
        "violations": violations,
    }


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="soak.py")))
