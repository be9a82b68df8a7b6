"""Gates: severity, threshold, penalty, veto, skip, and gates that have no answer."""

from __future__ import annotations

import math

import pytest

from verl_core.config.mount import MountConfig
from verl_reward_sdk import ConfigError, RewardError


def fused(table):
    return [None if math.isnan(value) else value for value in table.fused]


def gate(kit, name="g", **keys):
    return {
        "type": name,
        "provider": kit.gate_column(name),
        "role": "gate",
        "penalty": -1.0,
        **keys,
    }


def reward(kit, name="a", **keys):
    return {"type": name, "provider": kit.column(name), **keys}


def test_the_words_of_one_gate(kit, engine):
    columns = {
        "a": [0.5, 0.5, 0.5, 0.5, -3.0],
        "g": ["none", "penalty", "veto", "skip", "veto"],
    }
    table = engine(reward(kit), gate(kit)).score(kit.batch(columns=columns))
    assert fused(table) == [0.5, -0.5, -1.0, -1.0, -3.0]  # the lower of penalty and reward
    assert table.gate_severity.tolist() == ["none", "penalty", "veto", "skip", "veto"]
    assert table.skip.tolist() == [False, False, False, True, False]
    assert table.in_baseline.tolist() == [True, True, True, False, True]
    assert not table.masked.any()


def test_a_plain_bool_means_veto(kit, engine):
    columns = {"a": [0.5, 0.5], "g": [True, False]}
    assert fused(engine(reward(kit), gate(kit)).score(kit.batch(columns=columns))) == [-1.0, 0.5]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"threshold": {"below": 0.5}}, ["veto", "none", "none"]),
        ({"threshold": {"above": 0.5}}, ["none", "none", "veto"]),
        ({"threshold": {"below": 0.5}, "severity": "penalty"}, ["penalty", "none", "none"]),
        ({"threshold": {"above": 0.4}, "severity": "skip"}, ["none", "skip", "skip"]),
        ({"threshold": {"below": 0.5}, "skip_update": True}, ["skip", "none", "none"]),
    ],
)
def test_a_threshold_speaks_by_the_raw_score(kit, engine, keys, expected):
    columns = {"a": [1.0] * 3, "g": [0.4, 0.5, 0.6]}
    scored = {"type": "g", "provider": kit.column("g"), "role": "gate", "penalty": -1.0, **keys}
    table = engine(reward(kit), scored).score(kit.batch(columns=columns))
    assert list(table.columns["g"].severity) == expected


def test_of_severity_and_threshold_the_graver_holds(kit, engine):
    from verl_reward_sdk import RewardResult

    says = kit.says(
        lambda b: RewardResult([0.1, 0.9, 0.9], severity=["penalty", "skip", "none"]), role="gate"
    )
    built = engine(
        reward(kit),
        {
            "type": "g",
            "provider": says,
            "role": "gate",
            "penalty": -1.0,
            "threshold": {"below": 0.5},
        },
    )
    table = built.score(kit.batch(columns={"a": [1.0] * 3}))
    assert table.columns["g"].severity == ("veto", "skip", "none")


def test_skip_update_turns_every_veto_into_a_skip(kit, engine):
    columns = {"a": [0.5] * 3, "g": ["veto", "penalty", "none"]}
    table = engine(reward(kit), gate(kit, skip_update=True)).score(kit.batch(columns=columns))
    assert table.skip.tolist() == [True, False, False]
    assert fused(table) == [-1.0, -0.5, 0.5]


def test_a_vetoed_row_keeps_its_gradient_and_a_skipped_one_may_stay_in_the_baseline(kit, engine):
    columns = {"a": [0.5] * 3, "g": ["veto", "skip", "none"]}
    table = engine(reward(kit), gate(kit, in_baseline=True)).score(kit.batch(columns=columns))
    assert table.skip.tolist() == [False, True, False]
    assert table.in_baseline.tolist() == [True, True, True]
    assert not table.masked.any()


def test_of_several_gates_the_gravest_wins_penalties_add_up_and_the_lowest_veto_holds(kit, engine):
    columns = {
        "a": [1.0] * 5,
        "g": ["penalty", "veto", "veto", "skip", "penalty"],
        "h": ["penalty", "veto", "penalty", "veto", "none"],
    }
    table = engine(reward(kit), gate(kit), gate(kit, "h", penalty=-4.0)).score(
        kit.batch(columns=columns)
    )
    assert table.gate_severity.tolist() == ["penalty", "veto", "veto", "skip", "penalty"]
    # Row 2: the penalty of h brings it to -3, which the veto of g may not raise to -1.
    assert fused(table) == [-4.0, -4.0, -3.0, -4.0, 0.0]


def test_one_gate_that_keeps_a_skipped_row_out_of_the_baseline_is_enough(kit, engine):
    columns = {"a": [1.0] * 2, "g": ["skip", "skip"], "h": ["skip", "none"]}
    table = engine(reward(kit), gate(kit, in_baseline=True), gate(kit, "h")).score(
        kit.batch(columns=columns | {"a": [1.0, 1.0]}, training=False)
    )
    assert table.in_baseline.tolist() == [False, True]


# -- gates without an answer -----------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "reason"), [("!down", "gate failed"), (None, "gate abstained")])
def test_a_gate_without_an_answer_masks_in_training_and_blocks_elsewhere(kit, engine, cell, reason):
    columns = {"a": [0.5, 0.25], "g": [cell, "none"]}
    built = engine(reward(kit), gate(kit))
    trained = built.score(kit.batch(columns=columns))
    assert fused(trained) == [None, 0.25]  # never penalised for a crash
    assert trained.masked.tolist() == [True, False]
    assert not trained.blocked.any()
    assert trained.mask_reason == (reason, None)

    served = built.score(kit.batch(columns=columns, training=False, step=None))
    assert fused(served) == [None, 0.25]
    assert served.blocked.tolist() == [True, False]
    assert not served.masked.any()
    assert served.mask_reason == (reason, None)
    assert served.explain(0)["blocked"] is True
    assert served.explain(0)["reason"] == reason
    figures = served.metrics()
    assert figures["reward/blocked"] == 0.5
    assert figures["reward/masked"] == 0.0
    assert figures["reward/fused/mean"] == figures["reward/a/mean"] == 0.25  # in no mean


@pytest.mark.parametrize("cell", ["!down", None])
@pytest.mark.parametrize("training", [True, False])
def test_fail_open_lets_the_row_through(kit, engine, cell, training):
    columns = {"a": [0.5, 0.25], "g": [cell, "none"]}
    table = engine(reward(kit), gate(kit, fail_open=True)).score(
        kit.batch(columns=columns, training=training)
    )
    assert fused(table) == [0.5, 0.25]


@pytest.mark.parametrize("word", ["veto", "skip"])
@pytest.mark.parametrize("training", [True, False])
def test_a_veto_stands_whatever_became_of_the_rows_other_mounts(kit, engine, word, training):
    columns = {
        "a": ["broke", None, 0.5, 0.5],
        "g": [word, word, word, "none"],
        "h": ["none", "none", "!down", "none"],
    }
    table = engine(reward(kit), gate(kit), gate(kit, "h")).score(
        kit.batch(columns=columns, training=training)
    )
    assert fused(table) == [-1.0, -1.0, -1.0, 0.5]
    assert not table.masked.any()
    assert not table.blocked.any()
    assert table.mask_reason == (None,) * 4


def test_a_veto_on_a_row_that_another_gate_shuts_does_not_raise_its_reward(kit, engine):
    columns = {"a": [-2.0, 0.5], "g": ["veto", "none"], "h": ["!down", "none"]}
    table = engine(reward(kit), gate(kit), gate(kit, "h")).score(kit.batch(columns=columns))
    assert fused(table) == [-2.0, 0.5]


def test_a_penalty_on_a_masked_row_leaves_it_masked(kit, engine):
    columns = {"a": ["broke", 0.5], "g": ["penalty", "penalty"]}
    table = engine(reward(kit), gate(kit)).score(kit.batch(columns=columns))
    assert fused(table) == [None, -0.5]
    assert table.mask_reason == ("a failed", None)


def test_max_error_rate_does_not_apply_to_gates(kit, engine):
    columns = {"a": [0.5] * 4, "g": ["!down", "!down", "!down", "none"]}
    table = engine(reward(kit), gate(kit)).score(kit.batch(columns=columns))
    assert fused(table) == [None, None, None, 0.5]


# -- nothing left ----------------------------------------------------------------------------------


def test_a_step_in_which_gates_leave_no_live_row_raises_with_the_counts(kit, engine):
    columns = {"a": [0.5, 0.5, "broke", 0.5], "g": ["!down", None, "none", "skip"]}
    with pytest.raises(RewardError) as caught:
        engine(reward(kit), gate(kit)).score(kit.batch(columns=columns))
    message = str(caught.value)
    assert "no live row in step 3, of 4" in message
    for part in ("1 x gate failed", "1 x gate abstained", "1 x a failed", "1 x skipped"):
        assert part in message


def test_vetoed_rows_are_live(kit, engine):
    columns = {"a": [0.5, 0.5], "g": ["veto", "veto"]}
    assert fused(engine(reward(kit), gate(kit)).score(kit.batch(columns=columns))) == [-1.0, -1.0]


@pytest.mark.parametrize("step", [7, None], ids=["evaluation", "serving"])
def test_rows_are_blocked_outside_training_be_there_no_other(kit, engine, step):
    columns = {"a": [0.5], "g": ["!down"]}
    built = engine(reward(kit), gate(kit))
    table = built.score(kit.batch(columns=columns, training=False, step=step))
    assert table.blocked.all()
    assert table.mask_reason == ("gate failed",)


def test_skips_leave_live_rows_in_evaluation(kit, engine):
    columns = {"a": [0.5], "g": ["skip"]}
    table = engine(reward(kit), gate(kit)).score(kit.batch(columns=columns, training=False))
    assert fused(table) == [-1.0]


# -- configs ---------------------------------------------------------------------------------------


def test_a_gate_that_gives_no_severity_needs_a_threshold(kit, engine):
    with pytest.raises(ConfigError, match=r"reward\.g: .*threshold: \{below: x\}"):
        engine(
            reward(kit),
            {"type": "g", "provider": kit.column("g"), "role": "gate", "penalty": -1.0},
        )


def test_a_gate_that_answers_no_severity_fails_its_rows(kit, engine):
    says = {"type": "g", "provider": kit.says([0.0, 0.0], role="gate")}
    table = engine(reward(kit), {**says, "role": "gate", "penalty": -1.0}).score(
        kit.batch(columns={"a": [0.5, 0.5]}, training=False, step=None)
    )
    assert table.blocked.all()
    assert "must give a severity" in table.columns["g"].reasons[0]


def test_a_provider_that_is_meant_as_a_gate_is_not_summed_by_mistake(kit, engine):
    with pytest.raises(ConfigError, match=r"meant as a gate.*role: gate"):
        engine(reward(kit), {"type": "g", "provider": kit.gate_column("g")})
    summed = engine(reward(kit), {"type": "g", "provider": kit.gate_column("g"), "role": "reward"})
    assert summed.mounts["g"].role == "reward"


def test_gates_alone_are_no_reward(kit, engine):
    with pytest.raises(ConfigError, match="no mount has role: reward"):
        engine(gate(kit))


def test_a_gate_needs_a_penalty():
    with pytest.raises(ValueError, match="penalty"):
        MountConfig(type="g", node_class="here.It", role="gate")
