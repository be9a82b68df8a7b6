"""What counts as the same row for cached scores: contents, code, config and generation."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rewards.cache.conftest import SCOPE, batch
from verl_core.rewards.answer import Answer
from verl_core.rewards.cache import Split, asset_digests, cache_scope, code_version
from verl_core.rewards.cache.keys import Unkeyable, encode, row_keys
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError

DIFFERENT: list[Any] = [
    None,
    False,
    True,
    0,
    1,
    -1,
    255,
    256,
    2**80,
    0.0,
    -0.0,
    1.0,
    1j,
    "1",
    "",
    "None",
    b"1",
    b"",
    "\ud800",
    [],
    [1],
    [[1]],
    [[], 1],
    [1, []],
    ["ab", "c"],
    ["a", "bc"],
    ["abc"],
    (),
    (1,),
    {},
    {"a": 1},
    {"a": "1"},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"a": {"b": 2}},
    {1: "a"},
    set(),
    {1, 2},
    frozenset({1, 2}),
    np.array([1, 2]),
    np.array([1, 2], dtype=np.int32),
    np.array([1.0, 2.0]),
    np.array([[1, 2]]),
    np.array([[1], [2]]),
    np.array([], dtype=np.int64),
    np.array(1),
    np.array(["a", "b"]),
    np.array(["a", "b"], dtype=object),
    np.array([1, "1"], dtype=object),
    np.int64(1),
    np.int32(1),
    np.float64(1),
    np.float32(1),
    np.bool_(True),
    np.str_("1"),
    np.datetime64("2024-01-01"),
]


def test_no_two_different_values_are_written_alike() -> None:
    written = [encode(value) for value in DIFFERENT]
    for (i, one), (j, two) in itertools.combinations(enumerate(written), 2):
        assert one != two, (DIFFERENT[i], DIFFERENT[j])


def plain() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text(max_size=3), inner, max_size=4),
        ),
        max_leaves=12,
    )


@settings(max_examples=400, deadline=None)
@given(one=plain(), two=plain())
def test_values_are_written_alike_only_where_their_repr_is(one: Any, two: Any) -> None:
    assert (encode(one) == encode(two)) == (repr(one) == repr(two))


def test_equal_arrays_are_written_alike_however_they_lie_in_memory() -> None:
    array = np.arange(12).reshape(3, 4)
    assert encode(array) == encode(np.asfortranarray(array)) == encode(array[::-1][::-1])
    assert encode({3, 1, 2}) == encode({2, 3, 1})


@pytest.mark.parametrize(
    "value",
    [
        object(),
        OrderedDict(a=1),
        bytearray(b"1"),
        [lambda: 1],
        {"a": {"b": Path("x")}},
        np.zeros(1, dtype=[("a", "i4")]),
        np.ma.masked_array([1, 2], mask=[0, 1]),
    ],
)
def test_values_that_hide_something_are_not_keyed(value: Any) -> None:
    with pytest.raises(Unkeyable, match="there is a"):
        encode(value)


def test_a_value_that_holds_itself_is_not_keyed() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Unkeyable, match="nested more than 64 deep"):
        encode(circle)


def row(**fields: Any) -> RewardBatch:
    return batch("answer", **{key: value and [value] for key, value in fields.items()})


def key_of(rows: RewardBatch, scope: bytes = SCOPE, *, tokens: bool = False) -> bytes | None:
    (key,) = row_keys(rows, scope, tokens=tokens)
    return key


def test_what_a_provider_may_read_of_a_row_is_in_its_key() -> None:
    turn = {"role": "user", "content": "question"}
    rows = [
        row(),
        batch("another answer", responses_raw=["answer"]),
        row(prompts="another question"),
        row(prompts=[turn]),
        row(responses_raw="<think>no</think>answer"),
        row(finish_reason="length"),
        row(trajectories=[turn]),
        batch("answer", columns={"a": ["1"]}),
        batch("answer", columns={"a": [1]}),
        batch("answer", columns={"b": [1]}),
        batch("answer", columns={"a": [1], "b": [None]}),
    ]
    keys = [key_of(one) for one in rows] + [key_of(row(), b"another scope")]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_is_no_content_is_not_in_the_key() -> None:
    plain_row = batch("answer", columns={"a": [1], "b": [2]})
    for fields in (
        {"sample_ids": ["other"]},
        {"group_ids": ["g"]},
        {"step": 7},
        {"policy_version": 3},
        {"training": True},
        {"columns": {"b": [2], "a": [1]}},
    ):
        assert key_of(replace(plain_row, **fields)) == key_of(plain_row)
    two = batch("x", "answer", columns={"a": [0, 1], "b": [0, 2]})
    assert row_keys(two, SCOPE, tokens=False)[1] == key_of(plain_row)


def test_token_ids_count_where_token_scores_do() -> None:
    one, two = (row(response_ids=np.array([i])) for i in (1, 2))
    masked = row(response_ids=np.array([1]), response_mask=np.array([0]))
    assert key_of(one) == key_of(two) == key_of(row())
    assert len({key_of(r, tokens=True) for r in (one, two, masked, row())}) == 4


def test_the_scope_holds_provider_code_config_and_generation() -> None:
    base = {"provider": "p", "code": "c 1", "config": {"a": 1}, "generation": 1, "path": "reward.p"}
    others = [
        base,
        base | {"provider": "q"},
        base | {"code": "c 2"},
        base | {"config": {"a": 1.0}},
        base | {"generation": 2},
    ]
    scopes = {cache_scope(**some) for some in others}
    assert len(scopes) == len(others)
    assert cache_scope(**base | {"path": "reward.q"}) in scopes
    with pytest.raises(ConfigError, match=r"reward.p.cache: .* there is a object in it"):
        cache_scope(**base | {"config": {"a": object()}})


def test_another_state_of_the_code_or_of_an_asset_is_another_version(tmp_path: Path) -> None:
    assert code_version(Answer, "d 1") != code_version(Answer, "d 2")
    assert code_version(Answer) == code_version(Answer) != code_version(Split)
    folder, file = tmp_path / "model", tmp_path / "words.txt"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "weights").write_bytes(b"12")
    file.write_text("a")
    before = asset_digests([folder, file])
    assert [path for path, _ in before] == [str(folder), str(file)]
    (folder / "sub" / "weights").write_bytes(b"13")
    after = asset_digests([folder, file])
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)
    os.rename(folder / "sub", folder / "other")
    assert asset_digests([folder])[0] != after[0]


def test_code_of_a_class_without_a_file_has_its_name_only() -> None:
    made = type("Made", (), {"__module__": "no_such_module"})
    assert code_version(made) == " no_such_module.Made "
