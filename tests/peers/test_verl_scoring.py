"""Real `DataProto` rows go to the manager that verl loads, and rewards come back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.peers.verl_kit import GATE, outputs, rewards, score
from verl_reward_sdk import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")


# -- what verl gets ----------------------------------------------------------------------------


def test_verl_loads_the_manager_through_its_importlib_seam_and_gets_a_float(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe", "weight": 2.0})
    assert type(loaded).__name__ == "VerlRewardManager"
    (answer,) = score(loaded, row("four"))
    assert answer == {
        "reward_score": 8.0,
        "reward_extra_info": {"acc": 8.0, "reward/tone": 4.0, "weights/revision": 1.0},
    }
    assert all(type(value) is float for value in answer["reward_extra_info"].values())


def test_every_row_has_the_same_keys_and_none_is_called_reward(manager, row):
    loaded = manager(
        {"type": "tone", "plugin": "probe"},
        {"type": "maths", "plugin": "probe", "applies_to": 'data_source == "maths"'},
        GATE,
    )
    answers = score(
        loaded, row("one"), row("a veto"), row("sum", data_source="maths"), row("", eos=False)
    )
    keys = [list(answer["reward_extra_info"]) for answer in answers]
    assert (
        keys
        == [["acc", "reward/tone", "reward/maths", "reward/guard/rate", "weights/revision"]] * 4
    )
    assert rewards(answers) == [3.0, -3.0, 6.0, 0.0]
    infos = [answer["reward_extra_info"] for answer in answers]
    assert [info["reward/guard/rate"] for info in infos] == [0.0, 1.0, 0.0, 0.0]
    assert [is_nothing(info["reward/maths"]) for info in infos] == [True, True, False, True]


def is_nothing(value: Any) -> bool:
    return value is None or math.isnan(value)


def test_verl_s_validation_metrics_take_what_is_not_there(manager, row):
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    loaded = manager(
        {"type": "tone", "plugin": "probe"},
        {"type": "maths", "plugin": "probe", "applies_to": 'data_source == "maths"'},
    )
    answers = score(loaded, row("one"), row("three"))
    infos = {
        key: [a["reward_extra_info"][key] for a in answers]
        for key in answers[0]["reward_extra_info"]
    }
    metrics = process_validation_metrics(["shop", "shop"], ["u1", "u1"], infos)
    assert metrics["shop"]["acc"]["mean@2"] == 4.0
    assert metrics["shop"]["reward/tone"]["mean@2"] == 4.0


# -- where verl puts things --------------------------------------------------------------------


def test_of_several_outputs_the_last_is_scored_whatever_the_lengths(manager, probe, tokenizer):
    loaded = manager({"type": "tone", "plugin": "probe"})
    long_first = outputs(["a long first output", "end"], tokenizer, prompts=["p", "longer prompt"])
    long_last = outputs(["x", "the last one"], tokenizer, prompts=["a much longer prompt", "q"])
    assert rewards(score(loaded, long_first, long_last)) == [3.0, 12.0]
    (batch,) = probe()
    assert batch.responses == ("end", "the last one")
    assert batch.responses_raw == ("end<|im_end|>", "the last one<|im_end|>")


def test_padding_is_cut_where_verl_gives_a_mask_only(manager, probe, row, tokenizer):
    loaded = manager({"type": "tone", "plugin": "probe"})
    assert rewards(score(loaded, row("padded", pad=9, raw_prompt=None))) == [6.0]
    (batch,) = probe()
    assert batch.responses == ("padded",)
    assert batch.prompts == ("ask",)  # decoded: there were no messages
    assert batch.response_ids[0].tolist() == [
        *tokenizer("padded").input_ids,
        tokenizer.eos_token_id,
    ]


def test_a_provider_sees_prompt_group_step_and_how_the_response_ended(manager, probe, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    cut = row("x" * 20, eos=False, global_steps=7)
    assert rewards(score(loaded, row("fine", global_steps=7), cut)) == [4.0, 20.0]
    (batch,) = probe()
    assert batch.prompt_messages[0] == [{"role": "user", "content": "ask"}]
    assert batch.group_ids == ("u1", "u1")
    assert (batch.step, batch.training) == (7, True)
    assert batch.finish_reason == ("stop", "length")
    assert len(set(batch.sample_ids)) == 2


def test_columns_are_found_where_verl_keeps_them(manager, probe, row):
    names = ["ground_truth", "data_source", "index", "topic", "tags", "extra_info"]
    loaded = manager({"type": "tone", "plugin": "probe", "init_kwargs": {"reads": names}})
    answers = score(loaded, row("yes", topic="chairs", tags=[1, 2]))
    assert rewards(answers) == [3.0]
    (batch,) = probe()
    values = {name: column[0] for name, column in batch.columns.items()}
    assert values == {
        "ground_truth": "42",
        "data_source": "shop",
        "index": 3,
        "topic": "chairs",
        "tags": [1, 2],
        "extra_info": {"index": 3},
    }
    assert type(values["topic"]) is str


def test_a_row_without_a_column_fails_alone_and_says_which(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe", "init_kwargs": {"reads": ["topic"]}})
    good, bad = score(loaded, row("yes", topic="chairs"), row("no", topics="chairs"))
    assert good["reward_score"] == 3.0
    assert isinstance(bad, ConfigError)
    assert "no column 'topic'" in str(bad)
    assert "did you mean 'topics'?" in str(bad)


# -- coalescing --------------------------------------------------------------------------------


def test_rows_that_are_there_at_once_are_scored_in_one_call(manager, probe, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    texts = ["x" * (1 + i % 7) for i in range(40)]
    assert rewards(score(loaded, *(row(text) for text in texts))) == [
        float(len(text)) for text in texts
    ]
    assert [len(batch) for batch in probe()] == [40]


def test_rows_of_two_steps_are_scored_apart_each_with_the_weight_of_its_step(manager, probe, row):
    weight = {"linear": {"from": 1.0, "to": 0.0, "steps": 4}}
    loaded = manager(
        {"type": "tone", "plugin": "probe", "weight": weight},
        {"type": "other", "plugin": "probe", "weight": 1.0},
    )
    answers = score(loaded, *(row("four", global_steps=step) for step in (1, 3, 1)))
    assert rewards(answers) == [7.0, 5.0, 7.0]
    assert sorted({(batch.step, len(batch)) for batch in probe()}) == [(1, 2), (3, 1)]


def test_a_schedule_without_a_step_is_said_once(manager, row, caplog):
    weight = {"linear": {"from": 1.0, "to": 0.5, "steps": 4}}
    loaded = manager({"type": "tone", "plugin": "probe", "weight": weight})
    assert rewards(score(loaded, row("four"), row("four", uid="u2"))) == [4.0, 4.0]
    assert rewards(score(loaded, row("four", uid="u3"))) == [4.0]
    said = [r.getMessage() for r in caplog.records if "schedules stay" in r.getMessage()]
    assert len(said) == 1
    assert "tone" in said[0]
