"""The contract's section "Gates"."""

from __future__ import annotations

import itertools
import math

import pytest

from verl_reward_sdk import RewardError, RewardResult

WORDS = ("none", "penalty", "veto", "skip")


def gate(says, name, column, **keys):
    """A gate whose column holds a severity, None (an abstention) or ``!`` (a failure)."""

    def score(batch):
        cells = batch.columns[column]
        return RewardResult(
            [None if cell is None else 0.0 for cell in cells],
            failures={i: "down" for i, cell in enumerate(cells) if cell == "!"},
            severity=[None if cell == "!" else cell for cell in cells],
        )

    provider = says(score, role="gate", reads=frozenset({column}))
    return {"type": name, "provider": provider, "role": "gate", "penalty": -1.0, **keys}


def fused(table):
    return [None if math.isnan(value) else value for value in table.fused]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WORDS, WORDS)))
@pytest.mark.parametrize("reward", [2.0, -1.5, -9.0])
def test_of_two_gates(engine, says, rows, first, second, reward):
    """The gravest word wins; penalties add up; of vetoes the lowest holds; a veto puts the lower of
    it and the fused reward in its place, so that a gate never raises a reward; `skip` does as
    `veto`."""
    built = engine(
        {"type": "a", "provider": says("a")},
        gate(says, "g", "g", penalty=-1.0),
        gate(says, "h", "h", penalty=-4.0),
    )
    # A second row keeps the step alive where the first one is skipped.
    table = built.score(rows(a=[reward, 0.0], g=[first, "none"], h=[second, "none"]))
    said = {"g": (first, -1.0), "h": (second, -4.0)}
    summed = reward + sum(penalty for word, penalty in said.values() if word == "penalty")
    vetoes = [penalty for word, penalty in said.values() if word in ("veto", "skip")]
    expected = min([summed, *vetoes])
    assert table.fused.tolist() == [expected, 0.0]
    assert table.fused[0] <= reward
    gravest = max(first, second, key=WORDS.index)
    assert table.gate_severity.tolist() == [gravest, "none"]
    assert table.skip.tolist() == [gravest == "skip", False]
    assert table.masked.tolist() == [False, False]
    assert table.in_baseline.tolist() == [gravest != "skip", True]
    parts = [part["contribution"] for part in table.explain(0)["mounts"].values()]
    assert sum(parts) == pytest.approx(expected)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("lost", ["failed", "abstained"])
def test_a_row_whose_reward_is_lost(engine, says, rows, word, lost):
    """A veto or skip stands whatever became of the row's other mounts; a penalty on a masked row
    leaves it masked."""
    answer = RewardResult([0.0, 1.0], failures={0: "down"}) if lost == "failed" else [None, 1.0]
    built = engine({"type": "a", "provider": says(answer), "missing": "mask"}, gate(says, "g", "g"))
    table = built.score(rows(g=[word, "none"]))
    stands = word in ("veto", "skip")
    assert fused(table) == [-1.0 if stands else None, 1.0]
    assert table.masked.tolist() == [not stands, False]
    assert table.mask_reason[0] == (None if stands else f"a {lost}")


@pytest.mark.parametrize("cell", ["!", None])
@pytest.mark.parametrize("other", WORDS)
def test_a_gate_without_an_answer_never_passes_a_row(engine, says, rows, cell, other):
    """A gate that failed or abstained: in serving and evaluation the row is `blocked` (fused null,
    counted apart, left out of every mean, with its reason), in training masked, never penalised for
    a crash. Another gate's veto stands all the same."""
    reason = "gate failed" if cell == "!" else "gate abstained"
    built = engine({"type": "a", "provider": says("a")}, gate(says, "g", "g"), gate(says, "h", "h"))
    columns = {"a": [7.0, 1.0, 2.0], "g": [cell, "none", "none"], "h": [other, "none", "none"]}
    stands = other in ("veto", "skip")
    for training, step in ((True, 3), (False, 3), (False, None)):
        table = built.score(rows(training=training, step=step, **columns))
        assert fused(table) == [-1.0 if stands else None, 1.0, 2.0]
        assert table.masked[0] == (training and not stands)
        assert table.blocked[0] == (not training and not stands)
        assert not (table.masked | table.blocked)[1:].any()
        assert table.mask_reason[0] == (None if stands else reason)
        if table.blocked[0]:
            figures = table.metrics()
            assert figures["reward/blocked"] == pytest.approx(1 / 3)
            assert figures["reward/masked"] == 0.0
            assert figures["reward/fused/mean"] == 1.5
            assert figures["reward/a/mean"] == 1.5  # and not (7 + 1 + 2) / 3


def test_what_fail_open_lets_through_is_worth_its_reward(engine, says, rows):
    """`fail_open: true` lets it through."""
    built = engine({"type": "a", "provider": says("a")}, gate(says, "g", "g", fail_open=True))
    for training in (True, False):
        table = built.score(rows(a=[7.0, 1.0, 2.0], g=["!", None, "veto"], training=training))
        assert fused(table) == [7.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [({"below": 0.0}, [-1.0, 1.0, 1.0]), ({"above": 0.0}, [1.0, 1.0, -1.0])],
)
def test_a_threshold_speaks_beyond_its_bound_and_as_veto(engine, says, rows, threshold, expected):
    """`threshold: {below: x}` / `{above: x}` on its score (severity `veto` unless named)."""
    keys = {"role": "gate", "penalty": -1.0, "threshold": threshold}
    built = engine(
        {"type": "a", "provider": says([1.0] * 3)}, {"type": "g", "provider": says("g"), **keys}
    )
    table = built.score(rows(g=[-0.1, 0.0, 0.1]))
    assert table.fused.tolist() == expected
    assert set(table.gate_severity) == {"none", "veto"}


def test_a_cascade_asks_only_about_rows_that_are_open(engine, says, rows):
    """`after: [lexicon]` with `only_if: open`: the named gates scored the row and had nothing to
    say; a failed gate is not open, nor one that abstained or was not asked. Rows not asked are
    `not_applicable`."""
    asked = []

    def judge(batch):
        asked.extend(batch.sample_ids)
        return [1.0] * len(batch)

    built = engine(
        {"type": "a", "provider": says([1.0] * 7)},
        gate(says, "lexicon", "g", fail_open=True),
        gate(says, "part", "h", applies_to="k == 1"),
        {"type": "j", "provider": says(judge), "after": ["lexicon", "part"], "only_if": "open"},
    )
    cells = ["none", "penalty", "veto", "skip", "!", None, "none"]
    table = built.score(rows(g=cells, h=["none"] * 7, k=[1, 1, 1, 1, 1, 1, 0]))
    assert asked == ["s0"]
    assert table.columns["j"].status.tolist() == ["ok"] + ["not_applicable"] * 6


@pytest.mark.parametrize("loss", ["!", None, "skip"])
def test_a_step_without_a_live_row_raises_and_evaluation_does_not(engine, says, rows, loss):
    """`max_error_rate` does not apply to gates, but a step in which they leave no live row raises
    `RewardError`."""
    built = engine({"type": "a", "provider": says([1.0, 1.0, 1.0])}, gate(says, "g", "g"))
    with pytest.raises(RewardError, match="no live row in step 3, of 3"):
        built.score(rows(g=[loss] * 3))
    assert len(built.score(rows(g=[loss] * 3, training=False))) == 3
    table = built.score(rows(g=[loss, loss, "none"]))
    assert fused(table)[2] == 1.0
