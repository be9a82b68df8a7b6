"""A batch cannot be changed by whoever is given it, and computes its views once."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

from verl_reward_sdk import ContractError, RewardBatch

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Which jacket?"}]}]


def batch() -> RewardBatch:
    return RewardBatch(
        sample_ids=["a", "b"],
        prompts=[copy.deepcopy(MESSAGES), "Which coat?"],
        responses=["wool", "linen"],
        responses_raw=["<think>hm</think>wool", "linen"],
        trajectories=[copy.deepcopy(MESSAGES), []],
        columns={
            "facts": [{"words": ["warm"], "ids": np.array([1, 2])}, None],
            "truth": ("wool", "linen"),
            "tags": ({"x"}, {"y"}),
        },
    )


def vandalise(given: RewardBatch) -> None:
    given.prompt_messages[0][0]["content"][0]["text"] = "changed"  # type: ignore[index]
    given.prompts[0][0]["role"] = "changed"  # type: ignore[index]
    given.prompts[0].clear()  # type: ignore[union-attr]
    given.trajectories[0].append("changed")  # type: ignore[index, attr-defined]
    given.columns["facts"][0]["words"].append("changed")
    given.columns["facts"][0]["ids"][0] = 7
    given.columns["facts"][0]["new"] = "changed"
    given.columns["tags"][0].add("changed")
    for row in given.columns["facts"]:
        if row:
            row.clear()


def test_what_a_provider_does_to_nested_values_reaches_nobody_else() -> None:
    whole = batch()
    for given in (whole, whole.with_columns_only(["facts", "tags"]), whole.take([0])):
        vandalise(given)
    assert whole.prompts == (MESSAGES, "Which coat?")
    assert list(whole.prompt_messages[0]) == MESSAGES
    assert whole.trajectories == (MESSAGES, [])
    assert whole.columns["facts"][0]["words"] == ["warm"]
    assert whole.columns["facts"][0]["ids"].tolist() == [1, 2]
    assert set(whole.columns["facts"][0]) == {"words", "ids"}
    assert whole.columns["tags"] == ({"x"}, {"y"})


def test_no_row_can_be_replaced() -> None:
    whole = batch()
    for column in (whole.prompts, whole.columns["facts"], whole.columns["truth"]):
        with pytest.raises(TypeError):
            column[0] = "changed"  # type: ignore[index]
    with pytest.raises(TypeError):
        whole.columns["new"] = ()  # type: ignore[index]


def test_nested_values_are_plain_lists_and_dicts() -> None:
    whole = batch()
    assert json.loads(json.dumps(whole.prompt_messages[0])) == MESSAGES
    assert whole.prompt_messages[1] == [{"role": "user", "content": "Which coat?"}]
    assert isinstance(whole.columns["truth"], tuple)
    assert whole.to_records()[0]["prompt"] == MESSAGES


def test_a_slice_and_a_pickle_keep_the_nested_values() -> None:
    whole = pickle.loads(pickle.dumps(batch()))
    assert whole.prompts[:1] == (MESSAGES,)
    assert RewardBatch.concat([whole[:1], whole[1:]]).prompts == (MESSAGES, "Which coat?")
    vandalise(whole)
    assert whole.trajectories[0] == MESSAGES


def test_views_are_computed_once_for_all_that_share_the_rows() -> None:
    whole = batch()
    part = whole.with_columns_only(["truth"])
    assert part.prompt_text is whole.prompt_text
    assert whole.prompt_text == ("Which jacket?", "Which coat?")
    assert whole.answer == ("wool", "linen")
    assert whole.thinking == ("hm", "")
    taken = whole.take([1])
    assert taken._views.keys() == {"prompt_text", "answer", "thinking"}
    assert taken.prompt_text == ("Which coat?",)
    assert (taken.answer, taken.thinking) == (("linen",), ("",))
    assert set(part.columns) == {"truth"}


def test_an_array_that_is_handed_in_is_copied_and_read_only() -> None:
    ids = np.array([1, 2])
    whole = RewardBatch(sample_ids=["a"], prompts=["p"], responses=["r"], response_ids=(ids,))
    ids[0] = 9
    assert whole.response_ids is not None
    assert whole.response_ids[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        whole.response_ids[0][0] = 9


def test_openrlhfs_queries_lose_their_prompts() -> None:
    found = RewardBatch.from_openrlhf(["Why? So.", "How? Thus."], ["Why?", "How? "], ["a", "b"])
    assert found.responses == (" So.", "Thus.")
    assert found.columns["ground_truth"] == ("a", "b")


def test_a_query_of_openrlhf_that_does_not_begin_with_its_prompt_is_refused() -> None:
    with pytest.raises(ContractError, match="does not begin with its prompt") as caught:
        RewardBatch.from_openrlhf(["Why? So.", "How?  Thus."], ["Why?", "How? Thus."])
    assert (caught.value.row, caught.value.value) == (1, "How?  Thus.")
    with pytest.raises(ContractError, match="prompts has a wrong length"):
        RewardBatch.from_openrlhf(["Why? So."], [])


def test_what_cannot_be_a_column_is_refused_in_words() -> None:
    ids = ["a", "b"]
    with pytest.raises(ContractError, match="responses is one text: got 'xy', expected 2 of them"):
        RewardBatch(sample_ids=ids, prompts=["p", "p"], responses="xy")
    with pytest.raises(ContractError, match="row 1: a group id is a value that can be changed"):
        RewardBatch(sample_ids=ids, prompts=ids, responses=ids, group_ids=["g", ["g"]])
    with pytest.raises(ContractError, match="a completion is neither a text nor a list of mess"):
        RewardBatch.from_trl(["p"], [None])  # type: ignore[list-item]


def test_of_many_sample_ids_the_one_that_repeats_is_found() -> None:
    ids = [*map(str, range(200_000)), "199999"]
    with pytest.raises(ContractError, match="a sample id stands twice: got '199999'"):
        RewardBatch(sample_ids=ids, prompts=ids, responses=ids)
