"""The fused reward of parts of the held-out answers: by data source, and of the best of n."""

from __future__ import annotations

from typing import Any

from verl_core.trainer.report.data import RunData
from verl_core.trainer.split import BEST_OF, BY_SOURCE

_FUSED = "/fused/mean"


def splits_of(run: RunData) -> list[dict[str, Any]]:
    """``{kind, name, label, before, after}`` of each part, sources first; a side without the figure
    is None. `kind` is ``source`` or ``best_of``."""
    found: list[dict[str, Any]] = []
    for kind, group in (("source", BY_SOURCE), ("best_of", BEST_OF)):
        prefix = f"eval/reward/{group}/"
        keys = [key for figures in run.evaluated.values() for key in figures]
        for key in dict.fromkeys(keys):
            if not (key.startswith(prefix) and key.endswith(_FUSED)):
                continue
            name = key.removeprefix(prefix).removesuffix(_FUSED)
            label = f"data source {name}" if kind == "source" else f"the best of {name} answers"
            sides = {side: run.evaluated.get(side, {}).get(key) for side in ("before", "after")}
            found.append({"kind": kind, "name": name, "label": label, **sides})
    return found
