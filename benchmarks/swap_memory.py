"""Is memory flat over 100 good and 100 failed swaps of a large safetensors file?

A provider loads all of it. Half of the files are good, half are cut short, or have NaN weights,
which load and are refused by the proof. Resident memory is read after each swap, when nothing of
the old generation is left; the first ten are not counted, while the allocator finds its size.

    python benchmarks/swap_memory.py [--json] [--swaps N] [--megabytes N]
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from figures import Figure, show
from safetensors.numpy import save_file

from verl_core.cli.errors import run as with_messages
from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_core.rewards.reload.closing import flush
from verl_reward_sdk import RewardBatch

#: Of the memory after the first ten.
TARGET = 1.02
WARM_UP = 10
PLUGIN = """
import numpy as np
from pathlib import Path
from verl_reward_sdk import AssetPath, ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1


class WeighsConfig(ProviderConfig):
    model: AssetPath


class Weighs(RewardProvider[WeighsConfig]):
    name = "bench_weighs"
    score_range = (0.0, 1.0)

    def assets(self):
        return (self.config.model,)

    def setup(self):
        from safetensors.numpy import load_file

        self.weights = load_file(self.config.model)
        self.mean = float(self.weights["w"].mean())

    def score(self, batch):
        return [self.mean] * len(batch)


@hookimpl
def verl_reward_providers():
    return [Weighs]
"""


def main(
    swaps: Annotated[int, typer.Option(min=1, help="Good ones, and as many failed ones.")] = 100,
    megabytes: Annotated[int, typer.Option(min=1, help="Of the file.")] = 100,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Swap, and weigh the process after each swap."""
    with tempfile.TemporaryDirectory(prefix="swap-memory-") as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        _install(folder)
        files = _files(folder, megabytes)
        memory = _measured(folder, files, swaps)
    warm = float(np.median(memory[WARM_UP : 2 * WARM_UP] or memory))
    late = float(np.median(memory[-10:]))
    figures = [
        Figure(
            f"memory after {swaps} good and {swaps} failed swaps of {megabytes} MB",
            late,
            warm,
            "MB",
            TARGET if swaps > WARM_UP else None,
            higher_is_better=False,
        ),
        Figure("the most after a swap", max(memory[-swaps:]), warm, "MB"),
    ]
    note = "The peer: the same process after the first ten of each."
    show(
        "Resident memory, when nothing of the old generation is left",
        figures,
        as_json=as_json,
        notes=[note],
    )


def _files(folder: Path, megabytes: int) -> dict[str, Path]:
    """Content of two good files, and of two bad ones."""
    weights = np.full((megabytes, 2**18), 0.25, dtype=np.float32)
    files = {kind: folder / f"{kind}.safetensors" for kind in ("a", "b", "nan", "cut")}
    save_file({"w": weights}, files["a"])
    weights[:] = 0.5
    save_file({"w": weights}, files["b"])
    weights[0, 0] = np.nan
    save_file({"w": weights}, files["nan"])
    files["cut"].write_bytes(files["a"].read_bytes()[:-1000])
    return files


def _measured(folder: Path, files: dict[str, Path], swaps: int) -> list[float]:
    """Megabytes after each swap, good and failed in turn."""
    mount = MountConfig(type="m", plugin="bench_weighs", init_kwargs={"model": "model.safetensors"})
    rows = RewardBatch(sample_ids=["0"], prompts=[""], responses=[""])
    config = RewardsConfig(mounts=(mount,), base_dir=folder)
    target, me, memory = folder / "model.safetensors", psutil.Process(), []
    _put(files["a"], target)
    with RewardEngine.from_config(config, settle=0.01) as engine:
        for number in range(swaps):
            for kind in ("ba"[number % 2], ("cut", "nan")[number % 2]):
                _put(files[kind], target, number)
                found = engine.reload("m")
                wanted = "swapped" if kind in "ab" else "refused"
                if found["outcome"] != wanted or found["retired"]:
                    raise SystemExit(f"swap {number} ({kind}): {found}")
                engine.score(rows)
                flush(60)
                memory.append(me.memory_info().rss / 1e6)
    return memory


def _put(source: Path, target: Path, number: int = 0) -> None:
    """A file of its own each time: its last bytes tell it from all others, and are read."""
    draft = target.with_name("draft")
    draft.write_bytes(source.read_bytes())
    if source.stem in ("a", "b", "nan"):
        with draft.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(np.float32(0.25 + number * 1e-3 % 0.5).tobytes())
    os.replace(draft, target)


def _install(folder: Path) -> None:
    """Put the plugin where Python finds it, as pip would."""
    (folder / "bench_weighs.py").write_text(PLUGIN, "utf-8")
    info = folder / "bench_weighs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-weighs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verl_reward]\nbench_weighs = bench_weighs\n")
    sys.path.insert(0, str(folder))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="swap_memory.py")))
