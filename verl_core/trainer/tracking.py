"""What a run writes down while it trains: metrics.jsonl, samples.jsonl, TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from verl_core.trainer import jsonl
from verl_core.trainer.written import naming
from verl_reward_sdk import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Tracker:
    """Appends each step's figures and sample rows to the run's folder, flushed line by line.

    A step's lines are written whole or, on a full disk, not at all: `log` and `samples` then raise
    `VerlRewardError` with the file and the reason.

    Args:
        run_dir: the run's folder; made where it is missing.
        start_step: the step of the checkpoint that the run goes on from, 0 for a new run. What
            the files hold of later steps was written after that checkpoint and will be written
            again: it is dropped, atomically, so that no step stands there twice.
        tensorboard: also write ``tensorboard/``. ``True`` needs the package `tensorboard`;
            ``"auto"`` writes where the package is there and says nothing where it is not.
        samples_per_step: rows a step that `choose` picks.

    Raises:
        ConfigError: `tensorboard` is True and the package is not installed.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        start_step: int = 0,
        tensorboard: bool | Literal["auto"] = True,
        samples_per_step: int = 4,
    ) -> None:
        self.samples_per_step = samples_per_step
        run_dir.mkdir(parents=True, exist_ok=True)
        self._board_folder = run_dir / "tensorboard"
        with naming(self._board_folder):
            self._board = _open_board(self._board_folder, tensorboard, start_step)
        self._generations = run_dir / "generations.jsonl"
        for name in ("metrics.jsonl", "samples.jsonl", self._generations.name):
            jsonl.keep(run_dir / name, lambda record: _step_of(record) <= start_step)
        # Unbuffered: a line is in the file once its write returns, whatever ends the process.
        self._metrics = (run_dir / "metrics.jsonl").open("ab", buffering=0)
        self._samples = (run_dir / "samples.jsonl").open("ab", buffering=0)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one step's figures. Values that are finite numbers go to TensorBoard too.

        Where somebody has removed ``metrics.jsonl``, a new one begins with this step.
        """
        self._metrics = jsonl.still_there(self._metrics)
        jsonl.append(self._metrics, jsonl.encode({"step": step, **metrics}))
        self.board(step, metrics)

    def board(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Give figures to TensorBoard alone: those of an evaluation have a file of their own."""
        if self._board is None:
            return
        with naming(self._board_folder):
            for key, value in metrics.items():
                number = jsonl.plain(value)
                if isinstance(number, (int, float)):
                    self._board.add_scalar(_tag(key), number, step)
            self._board.flush()

    def choose(self, fused: Sequence[float]) -> tuple[int, ...]:
        """Which rows of a step to keep: `samples_per_step` of them, spread from worst to best.

        Args:
            fused: (B,) fused rewards; rows without one (NaN) are chosen last.

        Returns:
            Row numbers, ascending.
        """
        scored = [row for row, value in enumerate(fused) if not math.isnan(value)]
        unscored = [row for row, value in enumerate(fused) if math.isnan(value)]
        order = sorted(scored, key=lambda row: (fused[row], row)) + unscored
        count = min(self.samples_per_step, len(order))
        if count < 2:
            return tuple(order[:count])
        last = max(len(scored), count) - 1
        return tuple(sorted({order[round(i * last / (count - 1))] for i in range(count)}))

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append sample rows, each ``{sample_id, group_id, prompt, response, …, explain}``."""
        lines = b"".join(jsonl.encode({"step": step, **row}) for row in rows)
        self._samples = jsonl.still_there(self._samples)
        jsonl.append(self._samples, lines)

    def generation(self, step: int, mount: str, generation: Mapping[str, Any]) -> None:
        """Note in ``generations.jsonl`` what a mount runs from `step` on.

        Args:
            generation: ``{number, digests, version}``.
        """
        line = jsonl.encode({"step": step, "mount": mount, **generation})
        with naming(self._generations), self._generations.open("ab", buffering=0) as file:
            jsonl.append(file, line)

    def close(self) -> None:
        """Close the files. Closing twice does no harm."""
        self._metrics.close()
        self._samples.close()
        board, self._board = self._board, None
        if board is not None:
            with naming(self._board_folder):
                board.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _tag(name: str) -> str:
    """`name` as TensorBoard can hold it: a lone surrogate, which is no UTF-8, as its escape."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _step_of(record: Mapping[str, Any]) -> float:
    step = record.get("step")
    return step if isinstance(step, (int, float)) else math.inf


def _open_board(
    folder: Path, wanted: bool | Literal["auto"], start_step: int
) -> SummaryWriter | None:
    if wanted is False:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        if wanted == "auto":
            return None
        raise ConfigError(
            f"TensorBoard is asked for, and cannot be imported ({error})",
            path="tracking.tensorboard",
            hint="pip install tensorboard, or set tracking.tensorboard to false",
        ) from error
    # purge_step hides what an earlier life of this run wrote of the steps that come again.
    return SummaryWriter(log_dir=str(folder), purge_step=start_step + 1)
