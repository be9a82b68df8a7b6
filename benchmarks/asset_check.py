"""What it costs a lease to see that no file has changed: 20 files, as each step or request asks.

One mount has a rule file and watches the rest. The peer is `os.stat` of the same files alone.

    python benchmarks/asset_check.py [--json] [--files N] [--repeats N]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from figures import Figure, show, warn_if_busy
from turns import in_turns

from verl_core.cli.errors import run as with_messages
from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.rewards import RewardEngine
from verl_core.rewards.reload.fingerprint import YOUNG

TARGET = 100.0
FULL = 20
_CALLS = 200


def main(
    files: Annotated[int, typer.Option(min=1, help="How many files.")] = FULL,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 50,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list and nothing else on stdout.")
    ] = False,
) -> None:
    """Measure a lease with and without the look at its files."""
    with tempfile.TemporaryDirectory(prefix="asset-check-") as name, redirect_stdout(sys.stderr):
        warn_if_busy()
        folder = Path(name)
        paths = [folder / "rules.yaml", *(folder / f"words-{i}.txt" for i in range(1, files))]
        for path in paths:
            path.write_text("rules: [{name: a, contains: b, points: 1}]\n", "utf-8")
        with (
            _engine(folder, paths, watch=True) as looks,
            _engine(folder, paths, watch=False) as not_,
        ):
            time.sleep(YOUNG + 0.1)  # young files are hashed too
            looks.lease()
            texts = [str(path) for path in paths]
            seconds = in_turns(
                {
                    "looks": lambda: [looks.lease() for _ in range(_CALLS)],
                    "not": lambda: [not_.lease() for _ in range(_CALLS)],
                    "stat": lambda: [[os.stat(path) for path in texts] for _ in range(_CALLS)],
                },
                repeats,
            )
            assert looks.describe()[0]["generation"] == 1
    us = {key: value / _CALLS * 1e6 for key, value in seconds.items()}
    target = TARGET if files == FULL else None
    figures = [
        Figure(
            f"what a look at {files} files adds to a lease",
            us["looks"] - us["not"],
            None,
            "µs",
            target,
            higher_is_better=False,
        ),
        Figure(f"the same beside stat of {files} files", us["looks"] - us["not"], us["stat"], "µs"),
        Figure("a lease without it", us["not"], None, "µs"),
    ]
    show(
        f"{files} files that do not change, the median of {repeats} times", figures, as_json=as_json
    )


def _engine(folder: Path, paths: list[Path], *, watch: bool) -> RewardEngine:
    mount = MountConfig(
        type="tone",
        plugin="rules",
        init_kwargs={"rules": paths[0].name},
        watch=[path.name for path in paths[1:]],
    )
    return RewardEngine.from_config(RewardsConfig(mounts=(mount,), base_dir=folder), watch=watch)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(with_messages(lambda: app(prog_name="asset_check.py")))
