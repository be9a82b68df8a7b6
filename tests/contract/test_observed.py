"""The contract on a mount of weight 0: it is only observed; and on numbers that are very large."""

from __future__ import annotations

import math

import numpy as np
import pytest


@pytest.mark.parametrize("normalize", ["group", "batch", "running"])
def test_an_observed_mount_never_raises_whatever_it_scores(engine, says, rows, normalize):
    """A mount whose weight is 0 is only observed: it never masks or raises."""
    built = engine(
        {"type": "a", "provider": says([1e150, 0.0]), "weight": 0.0, "normalize": normalize},
        {"type": "b", "provider": says([1.0, 2.0])},
    )
    table = built.score(rows(2, groups="xx"))
    assert table.fused.tolist() == [1.0, 2.0]
    assert table.columns["a"].scores.tolist() == [1e150, 0.0]
    built.step_end(table)  # what it has learnt from is finite still
    assert math.isfinite(built.fuser.state()["running"].get("a", {"squares": 0.0})["squares"])


@pytest.mark.parametrize("scores", [[1.7e308, -1.7e308], [1e200, 3e200]])
def test_an_observed_mounts_figures_are_finite(engine, says, rows, scores):
    """`metrics()` holds finite numbers only."""
    built = engine(
        {"type": "a", "provider": says(scores), "weight": 0.0},
        {"type": "b", "provider": says([1.0, 2.0])},
    )
    with np.errstate(over="raise", invalid="raise"):
        figures = built.score(rows(2)).metrics()
    assert all(map(math.isfinite, figures.values()))
    assert figures["reward/a/std"] == pytest.approx(max(scores) / 2 - min(scores) / 2)
    assert figures["reward/a/mean"] == pytest.approx(max(scores) / 2 + min(scores) / 2)
