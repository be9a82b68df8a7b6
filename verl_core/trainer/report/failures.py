"""Which mounts failed while it trained: how often, in how many steps, and why at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from verl_core.trainer.report.data import RunData

_NAMED = 6


def failures_of(run: RunData) -> list[dict[str, Any]]:
    """``{mount, share, steps, of_steps, reason}`` of each mount that failed on a row, the worst
    first; `share` is the mean over the steps, `reason` the first that a kept sample tells."""
    found = []
    for mount in dict.fromkeys((*run.mounts, *run.gates)):
        shares = run.series(f"reward/{mount}/failed")
        known = shares[np.isfinite(shares)]
        if known.any():
            found.append(
                {
                    "mount": mount,
                    "share": float(known.mean()),
                    "steps": int(np.count_nonzero(known)),
                    "of_steps": len(known),
                    "reason": next(_reasons(run.samples, mount), None),
                }
            )
    return sorted(found, key=lambda one: -one["share"])


def _reasons(samples: Sequence[Mapping[str, Any]], mount: str) -> Iterator[str]:
    for sample in samples:
        said = sample.get("explain", {}).get("mounts", {}).get(mount, {})
        if said.get("status") == "failed" and said.get("reason"):
            yield str(said["reason"])


def failure_sentences(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """One a mount; beyond six they are counted."""
    said = []
    for one in failures[:_NAMED]:
        why = f", at first: {one['reason']}" if one["reason"] else ""
        share = f"{100 * one['share']:.3g}\u00a0%"
        said.append(
            f"{one['mount']} failed on {share} of its rows, in {one['steps']} of {one['of_steps']}"
            f" steps{why}."
        )
    if len(failures) > _NAMED:
        said.append(f"{len(failures) - _NAMED} more mounts failed at times.")
    return said
