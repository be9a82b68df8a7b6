"""What one place takes every place takes: token scores, and seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from verl_core.config.limits import MAX_SECONDS
from verl_core.config.mount import MountConfig
from verl_core.rewards.execution.process_wire import pack_answer, unpack
from verl_reward_sdk import ContractError, RewardResult

SECONDS = [
    lambda value: {"timeout": value},
    lambda value: {"queue_timeout": value},
    lambda value: {"retry_wait": value},
    lambda value: {"breaker": {"reset": value}},
]


def sent(answer, n=1):
    return unpack(pack_answer(answer, provider="m", n=n, score_range=(-math.inf, math.inf)))


@pytest.fixture
def scored(kit, engine, make_batch):
    """What the mount makes of an answer that its provider gives here, or sends from a worker."""

    def run(answer, *, over_the_wire):
        def give(batch):
            return sent(answer, len(batch)) if over_the_wire else answer

        provider = kit.says(give, token_scores=True)
        keys = {"on_error": "abstain", "max_error_rate": 1.0}
        built = engine({"type": "m", "provider": provider, **keys})
        tokens = {"response_ids": [np.arange(3)], "response_mask": [np.ones(3, int)]}
        mount = built.mounts["m"]
        return mount.read(mount.ask(make_batch("two words", **tokens), None), 1, None)

    return run


ENTRIES = [
    None,
    [],
    [0.0, 0.0, 1.0],
    np.array([True, False, False]),
    [(0, 3, 0.5), (4, 9, 0.5)],
    np.zeros((0, 3)),
    [(0, math.inf, 1.0)],
    [(0, 2.5, 1.0)],
    ["0", "0", "1"],
    [[1.0, 2.0], [3.0]],
    [[1.0, 0.0]],
    [1.0],
    [math.nan] * 3,
    "no",
]


@pytest.mark.parametrize("entry", ENTRIES, ids=repr)
@pytest.mark.parametrize("score", [1.0, None])
def test_token_scores_are_what_they_are_without_a_worker(scored, entry, score):
    answer = RewardResult(scores=[score], token_scores=[entry])
    here, there = (scored(answer, over_the_wire=way) for way in (False, True))
    assert here.codes.tolist() == there.codes.tolist()
    assert here.reasons == there.reasons
    assert repr(here.token_scores) == repr(there.token_scores)


def test_none_beside_token_scores_stays_none():
    answer = RewardResult(scores=[1.0, 1.0], token_scores=[None, [0.0, 0.0, 1.0]])
    first, second = sent(answer, 2).token_scores
    assert first is None
    assert second.tolist() == [0.0, 0.0, 1.0]
    with pytest.raises(ContractError, match="token scores of neither form"):
        sent(RewardResult(scores=[1.0], token_scores=["no"]))


@pytest.mark.parametrize("keys", SECONDS)
@pytest.mark.parametrize("value", [1e10, MAX_SECONDS + 1])
def test_more_seconds_than_a_clock_can_wait_for_are_refused_with_the_bound(keys, value):
    with pytest.raises(ValidationError, match="less than or equal to 604800"):
        MountConfig(type="m", plugin="rows", **keys(value))


@pytest.mark.usefixtures("deeds")
@pytest.mark.parametrize("execution", ["thread", "async", "process"])
def test_the_longest_deadline_is_waited_for(kit, engine, make_batch, execution):
    plugin = "later" if execution == "async" else "rows"
    keys = {"timeout": MAX_SECONDS, "queue_timeout": MAX_SECONDS}
    host = {"name": "x", "concurrency": 1}
    built = engine({"type": "m", "plugin": plugin, "execution": execution, "host": host, **keys})
    assert built.score(make_batch("1")).fused.tolist() == [1.0]
