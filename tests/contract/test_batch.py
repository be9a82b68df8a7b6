"""The contract's section "A batch"."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
from transformers import AutoTokenizer

from verl_reward_sdk import ContractError, RewardBatch

ROLLOUT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


def batch(**fields):
    whole = {
        "sample_ids": ["a", "b", "c"],
        "prompts": ["Why?", ROLLOUT[:1], "How?"],
        "responses": ["so", "4", "thus"],
        "responses_raw": ["<think>hm</think>so<end>", "4<end>", "thus"],
        "finish_reason": ["stop", "stop", "length"],
        "trajectories": [ROLLOUT, ROLLOUT, ROLLOUT],
        "columns": {"ground_truth": ["so", None, "thus"], "level": [1, 2, 3]},
        "group_ids": ["x", "x", 7],
        "response_ids": [np.array([1, 2]), np.array([3]), np.array([4, 5, 6])],
        "response_mask": [np.array([1, 0]), np.array([1]), np.array([1, 1, 0])],
        "policy_version": 4,
        "step": 5,
        "training": True,
    }
    return RewardBatch(**{**whole, **fields})


def plain(value):
    """`value` with arrays and sequences as lists, so that it can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "items"):
        return {key: plain(one) for key, one in value.items()}
    return value


def content(of):
    return {f.name: plain(getattr(of, f.name)) for f in dataclasses.fields(of)}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(RewardBatch)])
def test_it_is_frozen(field):
    """`RewardBatch` (frozen, columnar)."""
    whole = batch()
    before = content(whole)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(whole, field, getattr(whole, field))
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(whole, field)
    assert content(whole) == before


@pytest.mark.parametrize(
    "field",
    [
        *("prompts", "responses", "responses_raw", "finish_reason", "trajectories", "group_ids"),
        *("response_ids", "response_mask", "columns"),
    ],
)
@pytest.mark.parametrize("rows", [2, 4])
def test_every_field_has_a_value_a_row(field, rows):
    """B rows, one a rollout: a field of another length is refused, not padded."""
    value = ["x"] * rows
    wrong = {"level": value} if field == "columns" else value
    with pytest.raises(ContractError, match=rf"{field}.*wrong length: got {rows}, expected 3 rows"):
        batch(**{field: wrong})


def test_a_text_in_the_place_of_a_sequence_is_no_field():
    """`Sequence[str]`, B: a text of B letters is not B texts."""
    with pytest.raises(ContractError, match="responses is one text"):
        batch(responses="abc")


def test_sample_ids_are_unique():
    """`sample_ids`: unique in a run."""
    with pytest.raises(ContractError, match="a sample id stands twice: got 'a'"):
        batch(sample_ids=["a", "b", "a"])


def test_a_truncated_answer_does_not_look_like_a_finished_one():
    """An unfinished `<think>` leaves no answer; a finished one is split from it; `finish_reason`
    tells a cut response from a whole one, and stays with its row."""
    cut = batch(
        responses=["so", "I think that 4", "thus"],
        responses_raw=["<think>hm</think>so", "<think>I think that 4", "thus"],
        finish_reason=["stop", "length", "stop"],
    )
    assert cut.answer == ("so", "", "thus")
    assert cut.thinking == ("hm", "I think that 4", "")
    assert cut.take([1, 0]).finish_reason == ("length", "stop")


def test_len_slicing_and_concat_keep_every_field_of_every_row():
    """`len(batch)`, slicing, `concat`."""
    whole = batch()
    assert len(whole) == 3
    parts = [whole[:1], whole[1:]]
    assert [len(part) for part in parts] == [1, 2]
    assert plain(parts[1].response_ids) == [[3], [4, 5, 6]]
    assert parts[1].group_ids == ("x", 7)
    assert content(RewardBatch.concat(parts)) == content(whole)
    assert content(whole[::-1][::-1]) == content(whole)


def test_batches_that_do_not_fit_are_not_joined():
    """`concat`: a field or column that stands in some of them only is an error, not a guess."""
    with pytest.raises(ContractError, match="different columns"):
        RewardBatch.concat([batch(), batch(columns={"level": [1, 2, 3]})])
    with pytest.raises(ContractError, match="group_ids stands in some batches only"):
        RewardBatch.concat([batch(), batch(group_ids=None)])


def test_records_are_the_batch_and_back():
    """`from_records`/`to_records` are each other's inverse."""
    whole = batch()
    records = whole.to_records()
    assert [record["level"] for record in records] == [1, 2, 3]
    assert records[1]["ground_truth"] is None
    common = {"policy_version": 4, "step": 5, "training": True}
    assert content(RewardBatch.from_records(records, **common)) == content(whole)


def test_a_record_without_its_response_is_an_error_that_names_the_row():
    with pytest.raises(ContractError, match="row 1: a record has no 'response'"):
        RewardBatch.from_records([{"response": "a"}, {"prompt": "b"}])
    with pytest.raises(ContractError, match="row 0: a record has no 'group_id'"):
        RewardBatch.from_records([{"response": "a"}, {"response": "b", "group_id": 1}])


def test_trls_arguments():
    """Construction from TRL's argument shapes: texts or conversations, columns as keywords."""
    found = RewardBatch.from_trl(
        prompts=[ROLLOUT[:1], "How?"],
        completions=[[{"role": "tool", "content": "4.0"}, ROLLOUT[1]], "thus"],
        completion_ids=[[1, 2], [3]],
        ground_truth=["4", "thus"],
        trainer_state=object(),
        log_metric=print,
    )
    assert found.responses == ("4", "thus")
    assert found.prompt_text == ("2 + 2?", "How?")
    assert plain(found.response_ids) == [[1, 2], [3]]
    assert plain(found.columns) == {"ground_truth": ["4", "thus"]}
    assert found.training
    assert len(set(found.sample_ids)) == 2


def test_openrlhfs_arguments():
    """Construction from OpenRLHF's argument shapes: a query is the prompt and the response."""
    found = RewardBatch.from_openrlhf(["Why? so", "How? thus"], ["Why?", "How?"], ["so", "no"])
    assert found.prompts == ("Why?", "How?")
    assert found.responses == (" so", " thus")
    assert plain(found.columns) == {"ground_truth": ["so", "no"]}


def test_verls_arguments():
    """Construction from verl's argument shapes: `non_tensor_batch` of object arrays."""
    prompts = np.empty(2, dtype=object)
    prompts[:] = [ROLLOUT[:1], ROLLOUT[:1]]
    found = RewardBatch.from_verl(
        ["4", "5"],
        {
            "raw_prompt": prompts,
            "uid": np.array(["u", "u"], dtype=object),
            "reward_model": np.array([{"ground_truth": "4"}] * 2, dtype=object),
            "data_source": np.array(["math", "math"], dtype=object),
        },
        step=9,
    )
    assert found.prompt_text == ("2 + 2?", "2 + 2?")
    assert found.group_ids == ("u", "u")
    assert plain(found.columns) == {"ground_truth": ["4", "4"], "data_source": ["math", "math"]}
    assert (found.step, found.training) == (9, True)
    assert not RewardBatch.from_verl(["4"], {}, training=False).training


def test_what_a_run_hands_to_a_provider(noted_run):
    """Each field as the contract has it, of a real run: `responses` decoded without special tokens
    and `responses_raw` with them and without padding; `length` where the response was cut; one
    group a prompt; `response_mask` 1 where the policy sampled the token; `policy_version`, `step`,
    `training`; and of the data's columns only those that the mount declares."""
    run, noted = noted_run
    ends = set(range(0, 257, 4))  # a quarter of all tokens ends a response
    model = shutil.copytree(run.config["model"]["path"], run.folder / "model")
    settings = json.loads((model / "generation_config.json").read_text("utf-8"))
    settings["eos_token_id"] = sorted(ends)
    (model / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    run.config["model"]["path"] = str(model)
    run.config["reward"][-1]["reads"] = ["ground_truth"]
    run.train("trainer.steps=2", "trainer.eval_before=false", "trainer.eval_after=false")
    rows = noted()
    tokenizer = AutoTokenizer.from_pretrained(model)
    plainly = {"clean_up_tokenization_spaces": False}
    assert len(rows) == len({row["sample_id"] for row in rows}) == 16
    groups = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row["prompt"])
        ended = row["ids"][-1] in tokenizer_ends(tokenizer, ends)
        assert row["finish_reason"] == ("stop" if ended else "length")
        assert ended or len(row["ids"]) == 8
        assert row["mask"] == [1] * len(row["ids"])
        assert row["raw"] == tokenizer.decode(row["ids"], **plainly)
        assert row["response"] == tokenizer.decode(row["ids"], skip_special_tokens=True, **plainly)
        assert row["training"]
        assert row["policy_version"] == row["step"] - 1  # one update a step
        assert row["columns"] == {"ground_truth": "It is fine."}
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    assert [(len(prompts), len(set(prompts))) for prompts in groups.values()] == [(4, 1)] * 4
    assert {row["step"] for row in rows} == {1, 2}


def tokenizer_ends(tokenizer, ends):
    """The tokens that end a response: the generation config's and the tokenizer's own."""
    return ends | {tokenizer.eos_token_id}


def test_no_sample_id_stands_twice_in_a_run(noted_run):
    """`sample_ids`: unique in a run, its evaluations included."""
    run, noted = noted_run
    run.train("trainer.steps=2", "rollout.batch_rows=2", "rollout.stream=false")
    names = [row["sample_id"] for row in noted()]
    assert any(not row["training"] for row in noted())
    assert len(set(names)) == len(names)


def test_the_policy_version_of_an_evaluation_is_that_of_the_policy_that_answered(noted_run):
    """`policy_version`: which policy sampled it."""
    run, noted = noted_run
    run.train("trainer.steps=2")
    assert {row["policy_version"] for row in noted() if not row["training"]} == {0, 2}
    assert {row["policy_version"] for row in noted() if row["training"]} == {0, 1}


def test_thinking_that_the_template_opens_is_kept_in_responses_raw(noted_run):
    """`responses_raw`: a prefilled `<think>` kept, so that an answer which is cut within its
    thinking does not look like a finished one."""
    run, noted = noted_run
    model = shutil.copytree(run.config["model"]["path"], run.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    opens = "<|im_start|>assistant\n"
    assert tokenizer.chat_template.count(opens) == 1
    tokenizer.chat_template = tokenizer.chat_template.replace(opens, opens + "<think>\n")
    tokenizer.save_pretrained(model)
    run.config["model"]["path"] = str(model)
    run.train("trainer.steps=1")
    for row in noted():
        assert row["raw"].startswith("<think>\n")
        assert not row["response"].startswith("<think>")
    assert {row["training"] for row in noted()} == {True, False}


@pytest.mark.parametrize("reason", ["eos", "", None])
def test_a_finish_reason_is_one_of_four(reason):
    """`finish_reason`: `stop`, `length`, `abort`, `tool_error`."""
    with pytest.raises(ContractError, match=r"row 1.*one of stop, length, abort, tool_error"):
        batch(finish_reason=["stop", reason, "length"])
