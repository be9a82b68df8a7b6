"""What a person sees while a run trains: a live panel, or one plain line a step.

`make_display` chooses: the live panel on a terminal, plain lines elsewhere (a pipe, a log file,
``--plain``, ``NO_COLOR``, ``CI``, ``TERM=dumb``). Both speak of the same things; the trainer calls

    with make_display("customer-service", steps=16) as display:
        with display.phase("Loading SmolLM2-135M-Instruct"):
            ...
        with display.phase("Held-out evaluation, before", total=120, unit="prompts") as phase:
            phase.advance(8)
            phase.result = "fused 0.264"
        display.stage("rollout")
        display.step(1, metrics)
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from verl_core.trainer.display import panel
from verl_core.trainer.display.control_keys import ControlKeys
from verl_core.trainer.display.line import plain_line
from verl_core.trainer.display.progress import Phase, Progress
from verl_core.trainer.display.steady import occupy_standard_descriptors, steady

TOLD_PARTS = 4
"""A phase whose length is known is told in so many parts, where lines are printed."""

QUIET_SECONDS = 10.0
"""After so long without a line, the stage that a step comes to is told, where lines are printed."""


class Display(ABC):
    """Shows one run. Use it as a context manager: the terminal is restored whatever happens.

    Where standard output can no longer be written to, nothing is shown and nothing raises.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress = progress
        self.console = console

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Phase]:
        """Show something other than a training step: a model that loads, an evaluation.

        Args:
            title: what is being done, without a full stop.
            total: of how many units it consists; None where that is not known.
            unit: what is counted, such as ``prompts``.
        """
        occupy_standard_descriptors()  # what runs in a phase opens files
        phase = Phase(title, total, unit, self._phase_moved)
        self.progress.phase = phase
        self._phase_began(phase)
        try:
            yield phase
        except BaseException:
            self._phase_ended(phase, failed=True)
            raise
        else:
            self._phase_ended(phase, failed=False)
        finally:
            self.progress.phase = None
            self.progress.mark()

    def stage(self, name: str) -> None:
        """Say what the running step does now: rollout, reward, advantage, update."""
        occupy_standard_descriptors()
        if name != self.progress.stage:
            self.progress.stage = name
            self._stage_began()

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take one finished step's figures, named as in metrics.jsonl."""
        self.progress.take(step, metrics)
        self._step_ended()

    def recall(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take the figures of a resumed run's earlier steps, as metrics.jsonl has them, so that
        trends and changes count from its start."""
        self.progress.recall(records)

    def stopping(self, message: str) -> None:
        """Say that the run was asked to end after this step.

        It may be called by a signal's handler, in the middle of whatever is drawn.

        Args:
            message: what plain lines say; the panel has words of its own.
        """
        self.progress.stopping = True
        self.say(message)

    @abstractmethod
    def say(self, message: str) -> None:
        """Print one line that stays: a checkpoint, a changed weight, a warning."""

    @abstractmethod
    def _phase_began(self, phase: Phase) -> None: ...

    @abstractmethod
    def _phase_moved(self, phase: Phase, before: int) -> None:
        """`phase` has come from `before` units to ``phase.completed``."""

    @abstractmethod
    def _phase_ended(self, phase: Phase, *, failed: bool) -> None: ...

    @abstractmethod
    def _stage_began(self) -> None: ...

    @abstractmethod
    def _step_ended(self) -> None: ...

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing, so that what is printed next stands below. Twice does no harm."""
        self.console.file.flush()


class PlainDisplay(Display):
    """One line a step, ASCII where it is ours, as fit for a log file as for a pipe.

    What takes long is told on the way: an evaluation by quarters, the first step when it begins,
    and a later one where nothing was said for `QUIET_SECONDS`.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        super().__init__(progress, console)
        self._said = time.monotonic()
        self._stepping = False

    def say(self, message: str) -> None:
        self._said = time.monotonic()
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def _phase_began(self, phase: Phase) -> None:
        self.say(f"{phase.title} ...")

    def _phase_moved(self, phase: Phase, before: int) -> None:
        if not phase.total or phase.completed >= phase.total:  # its end is told anyway
            return
        if TOLD_PARTS * phase.completed // phase.total > TOLD_PARTS * before // phase.total:
            unit = f" {phase.unit}" if phase.unit else ""
            self.say(f"{phase.title}: {phase.completed}/{phase.total}{unit}")

    def _stage_began(self) -> None:
        first, self._stepping = not self._stepping, True
        if first or time.monotonic() - self._said >= QUIET_SECONDS:
            step = f"step {self.progress.step + 1}/{self.progress.steps}"
            self.say(f"{step}: {self.progress.stage} ...")

    def _phase_ended(self, phase: Phase, *, failed: bool) -> None:
        word = "failed" if failed else "done"
        result = f": {phase.result}" if phase.result and not failed else ""
        self.say(f"{phase.title}: {word} in {phase.seconds:.1f} s{result}")

    def _step_ended(self) -> None:
        if (change := self.progress.revision_change()) is not None:
            self.say(change)
        self.say(plain_line(self.progress))


class LiveDisplay(Display):
    """A panel that is redrawn in place; lines said meanwhile scroll by above it."""

    def __init__(self, progress: Progress, console: Console) -> None:
        super().__init__(progress, console)
        self._unicode = not console.options.ascii_only
        self._keys = ControlKeys(console.file)
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._draw)

    def say(self, message: str) -> None:
        self.console.print(Text(message), soft_wrap=True)

    def stopping(self, message: str) -> None:
        self.progress.stopping = True  # the panel is drawn anyway; a line now could tear it

    def _draw(self) -> RenderableType:
        return panel.draw(self.progress, width=self.console.width, unicode=self._unicode)

    def _phase_began(self, phase: Phase) -> None:
        self._live.refresh()

    def _phase_moved(self, phase: Phase, before: int) -> None:
        """The panel is drawn again a few times a second, as it is."""

    def _stage_began(self) -> None:
        """As `_phase_moved`."""

    def _phase_ended(self, phase: Phase, *, failed: bool) -> None:
        good, bad = ("✓", "✗") if self._unicode else ("ok", "failed")
        mark = (f"{bad} ", "bold red") if failed else (f"{good} ", "bold green")
        line = Text.assemble(mark, phase.title)
        line.append(f"  {phase.seconds:.1f} s", style="dim")
        if phase.result and not failed:
            line.append(f"  {phase.result}")
        self.console.print(line)

    def _step_ended(self) -> None:
        if (change := self.progress.revision_change()) is not None:
            self.console.print(Text(change, style="yellow"))
        self._live.refresh()

    def __enter__(self) -> LiveDisplay:
        self._keys.hush()
        self._live.start(refresh=True)
        return self

    def close(self) -> None:
        self.progress.stopping = False  # the panel that stays is drawn once more: it has stopped
        self._live.stop()
        self._keys.restore()


def printable(console: Console) -> Console:
    """`console`, which from now on prints any text: what its encoding lacks shows as ``?``."""
    if not console.encoding.lower().startswith("utf") and isinstance(console.file, TextIOWrapper):
        console.file.reconfigure(errors="replace")
    return console


def make_display(
    name: str,
    steps: int,
    *,
    start_step: int = 0,
    url: str | None = None,
    plain: bool = False,
    console: Console | None = None,
    env: Mapping[str, str] = os.environ,
) -> Display:
    """The display that fits the output.

    Args:
        name: the run's name.
        steps: the number of the last step.
        start_step: the step that a resumed run goes on from; 0 for a new run.
        url: where the control plane listens, if it does.
        plain: ``--plain``: lines, even on a terminal.
        console: where to print; standard output by default, of which nothing raises that breaks.
        env: a non-empty ``NO_COLOR`` or ``CI`` asks for lines as well.
    """
    console = printable(console or Console(file=steady(sys.stdout)))
    animated = console.is_terminal and not console.is_dumb_terminal
    progress = Progress(name=name, steps=steps, step=start_step, url=url)
    if plain or not animated or env.get("NO_COLOR") or env.get("CI"):
        return PlainDisplay(progress, console)
    return LiveDisplay(progress, console)
