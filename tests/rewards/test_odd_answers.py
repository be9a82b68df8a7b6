"""What no column can hold fails its call under the mount's own `on_error`, and nothing later."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from verl_core.rewards.execution.process_wire import pack_answer, unpack
from verl_core.trainer.jsonl import encode
from verl_reward_sdk import RewardError, RewardResult


class Evil:
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


ODD: dict[str, dict[str, Any]] = {
    "bytes": {"reasons": {0: b"x"}},
    "evil reason": {"reasons": {1: Evil()}},
    "evil failure": {"failures": {1: Evil()}},
    "no failure": {"failures": {0: None}},
    "evil key": {"failures": {Evil(): "x"}},
    "negative": {"failures": {-1: "x"}},
    "surrogate": {"extras": {"\ud800": [1.0, 2.0]}},
    "complex": {"scores": [1j, 2j]},
    "complex array": {"scores": np.array([1j, 2j])},
    "huge": {"scores": [10**5000, 1]},
}


@pytest.mark.parametrize("execution", ["inline", "thread"])
@pytest.mark.parametrize("what", ODD)
def test_an_odd_answer_fails_its_call_as_on_error_says(
    kit: Any, engine: Callable[..., Any], what: str, execution: str
) -> None:
    answer = RewardResult(**{"scores": [1.0, 1.0], **ODD[what]})
    odd = {"type": "odd", "provider": kit.says(answer), "execution": execution}
    other = {"type": "n", "provider": kit.says([0.5, 0.5])}
    defaulting = {"on_error": {"default": 0.25}, "max_error_rate": 1.0}
    table = engine({**odd, **defaulting}, other).score(kit.batch(2))
    assert table.fused.tolist() == [0.75, 0.75]
    assert all("odd (tests.Provider): " in reason for reason in table.columns["odd"].reasons)
    assert encode([table.explain(0), table.metrics()])
    with pytest.raises(RewardError, match=r"odd: 2 of 2 rows failed \(on_error: raise\): odd"):
        engine({**odd, "on_error": "raise"}, other).score(kit.batch(2))


def test_what_a_mask_hides_never_reaches_a_table(kit: Any, engine: Callable[..., Any]) -> None:
    hidden = np.ma.array([0.5, -777.0, 0.25], mask=[False, True, False])
    answer = RewardResult(
        scores=hidden,
        present=np.ma.array([True, True, True], mask=[False, False, True]),
        reasons={0: "seen", 1: None},
        extras={"length": hidden},
    )
    mount = {"type": "m", "provider": kit.says(answer), "missing": "zero"}
    column = engine(mount).score(kit.batch(3)).columns["m"]
    assert column.status.tolist() == ["ok", "abstained", "abstained"]
    assert column.reasons == ("seen", None, None)
    assert column.scores[0] == 0.5
    assert np.isnan(column.scores[1:]).all()
    assert np.array_equal(column.extras["length"], [0.5, math.nan, 0.25], equal_nan=True)


def test_a_worker_process_sends_the_same() -> None:
    hidden = np.ma.array([0.5, -777.0], mask=[False, True])
    answer = RewardResult(hidden, reasons={0: None, 1: "no price"}, extras={"length": hidden})
    sent = unpack(pack_answer(answer, provider="m", n=2, score_range=(-1.0, 1.0)))
    assert sent is not None
    scores, scored = sent.checked(provider="m", n=2, score_range=(-1.0, 1.0))
    assert scored.tolist() == [True, False]
    assert scores[0] == 0.5
    assert sent.reasons == {1: "no price"}
    assert np.array_equal(sent.extras["length"], [0.5, math.nan], equal_nan=True)
