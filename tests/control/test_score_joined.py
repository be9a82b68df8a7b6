"""Requests of one moment are scored at once, where it makes no difference to any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_scoring import install

from verl_core.control.scoring.batch import Rows
from verl_core.control.scoring.joined import Joiner, Part
from verl_core.control.scoring.models import ScoreRow
from verl_core.integrations.fitting import read_rewards
from verl_core.rewards import RewardEngine
from verl_reward_sdk.errors import ConfigError

GATED = """
reward:
  - {type: a, plugin: length}
  - {type: hit, plugin: match, weight: 2.0}
  - {type: guard, plugin: guarding, role: gate, penalty: -5.0}
"""


@pytest.fixture
def engine(plugin_site: Any, tmp_path: Path) -> Callable[[str], RewardEngine]:
    install(plugin_site)

    def make(text: str) -> RewardEngine:
        (tmp_path / "r.yaml").write_text(text, "utf-8")
        made = RewardEngine.from_config(read_rewards(tmp_path / "r.yaml").train)
        made.setup()
        return made

    return make


def _rows(*texts: str, **fields: Any) -> Rows:
    return Rows.of([ScoreRow(response=t, columns={"truth": "x"}, **fields) for t in texts])


def _asked(engine: RewardEngine, *requests: Rows) -> list[Part | BaseException]:
    async def all_at_once() -> list[Part | BaseException]:
        async def lease() -> Any:
            return engine.lease()

        joiner = Joiner(engine, engine.lease, lease)
        asked = [joiner.score(rows) for rows in requests]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(all_at_once())


def _fused(part: Part | BaseException) -> list[float]:
    assert isinstance(part, Part), part
    found: list[float] = part.table.fused[part.start : part.stop].tolist()
    return found


def _calls(engine: RewardEngine) -> int:
    return engine.mounts["a"].counters.calls


def test_each_gets_its_own_rows_of_one_batch(engine: Callable[[str], RewardEngine]) -> None:
    made = engine(GATED)
    parts = _asked(made, _rows("x", "abc"), _rows("bad"), _rows("x", "x", "ab"))
    assert [_fused(part) for part in parts] == [[3.0, 3.0], [-5.0], [3.0, 3.0, 2.0]]
    assert _calls(made) == 1


@pytest.mark.parametrize("odd", ["", "break"])  # abstained from; a gate fails over it
def test_a_row_without_a_score_has_each_scored_by_itself(
    engine: Callable[[str], RewardEngine], odd: str
) -> None:
    made = engine(GATED)
    alone = [_fused(_asked(made, rows)[0]) for rows in (_rows("x", odd), _rows("abc"))]
    before = _calls(made)
    parts = _asked(made, _rows("x", odd), _rows("abc"))
    assert str([_fused(part) for part in parts]) == str(alone)  # NaN equals nothing
    assert _calls(made) - before == 3


def test_a_request_that_breaks_breaks_no_other(engine: Callable[[str], RewardEngine]) -> None:
    made = engine("reward: [{type: a, plugin: length, applies_to: 'truth < 3'}]\n")
    good = Rows.of([ScoreRow(response="abc", columns={"truth": 1})])
    first, second, third = _asked(made, good, _rows("x"), good)
    assert isinstance(second, ConfigError)  # a text is not less than 3
    assert (_fused(first), _fused(third)) == ([3.0], [3.0])


def test_ids_that_clash_and_fields_that_differ_are_kept_apart(
    engine: Callable[[str], RewardEngine],
) -> None:
    made = engine(GATED)
    _asked(made, _rows("x", sample_id="same"), _rows("x", sample_id="same"))
    assert _calls(made) == 2
    _asked(made, _rows("x", group="g"), _rows("x"))
    assert _calls(made) == 4
    named = _asked(made, _rows("x", sample_id="mine"), _rows("ab"))
    assert _calls(made) == 5
    assert [_fused(part) for part in named] == [[3.0], [2.0]]


@pytest.mark.parametrize(
    "text",
    [
        "reward: [{type: a, plugin: length, normalize: group}]\n",
        "reward: [{type: a, plugin: length}]\nfusion: {policy: lexicographic}\n",
    ],
)
def test_what_compares_rows_is_never_joined(
    engine: Callable[[str], RewardEngine], text: str
) -> None:
    made = engine(text)
    _asked(made, *[_rows("x", "abc", group="g")] * 3)
    assert _calls(made) == 3


def test_no_more_rows_than_a_batch_may_have_are_joined(
    engine: Callable[[str], RewardEngine],
) -> None:
    made = engine("reward: [{type: a, plugin: length}]\n")
    parts = _asked(made, *[_rows(*["x"] * 200)] * 5)
    assert all(_fused(part) == [1.0] * 200 for part in parts)
    assert _calls(made) == 3
