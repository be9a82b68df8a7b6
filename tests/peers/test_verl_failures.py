"""Inside verl: what becomes of rows that failed, of abstentions, vetoes and skips."""

from __future__ import annotations

import pytest

from tests.peers.verl_kit import GATE, rewards, score
from verl_reward_sdk import RewardError

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_failed_row_raises_and_its_batch_mates_do_not(manager, probe, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    one, failed, three = score(loaded, row("one"), row("fail"), row("three"))
    assert rewards([one, three]) == [3.0, 5.0]
    assert isinstance(failed, RewardError)
    assert "tone failed (tone: cannot); its prompt group fails" in str(failed)
    assert len(probe()) == 1


def test_most_of_a_batch_may_fail_and_the_rest_has_its_rewards(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    *failed, good = score(loaded, *(row("fail") for _ in range(9)), row("good"))
    assert all(isinstance(error, RewardError) for error in failed)
    assert good["reward_score"] == 4.0


def test_a_call_that_raises_fails_its_rows_and_not_the_next_call(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    first, second = score(loaded, row("explode"), row("beside it"))
    assert "boom" in str(first)
    assert isinstance(second, RewardError)
    assert rewards(score(loaded, row("well"))) == [4.0]


def test_an_abstention_raises_and_never_takes_the_mean_of_strangers(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    known, unknown = score(loaded, row("known"), row("abstain"))
    assert known["reward_score"] == 5.0
    assert isinstance(unknown, RewardError)
    assert "tone abstained (tone: no idea)" in str(unknown)


def test_missing_zero_and_a_default_score_are_carried(manager, row):
    loaded = manager(
        {"type": "tone", "plugin": "probe", "missing": "zero", "on_error": {"default": -2.0}}
    )
    assert rewards(score(loaded, row("abstain"), row("fail"), row("ok"))) == [0.0, -2.0, 2.0]


def test_on_error_abstain_goes_the_way_of_abstentions(manager, row):
    mount = {"type": "tone", "plugin": "probe", "on_error": "abstain"}
    assert rewards(score(manager(mount | {"missing": "zero"}), row("fail"))) == [0.0]
    (error,) = score(manager(mount), row("fail"))
    assert isinstance(error, RewardError)


def test_a_gate_that_could_not_judge_raises_unless_it_is_open(manager, row):
    tone = {"type": "tone", "plugin": "probe", "missing": "zero", "on_error": {"default": 1.0}}
    shut, fine = score(manager(tone, GATE), row("abstain"), row("ok"))
    assert isinstance(shut, RewardError)
    assert "gate abstained" in str(shut)
    assert fine["reward_score"] == 2.0
    assert rewards(score(manager(tone, GATE | {"fail_open": True}), row("abstain"))) == [0.0]


def test_all_rows_behind_a_shut_gate_raise(manager, row):
    tone = {"type": "tone", "plugin": "probe", "missing": "zero"}
    errors = score(manager(tone, GATE), row("abstain", global_steps=1), row("abstain"))
    assert all(isinstance(error, RewardError) for error in errors)


def test_a_veto_is_carried_as_a_penalty_and_a_skip_of_the_provider_s_raises(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"}, GATE)
    vetoed, skipped = score(loaded, row("veto this"), row("skip this"))
    assert vetoed["reward_score"] == -3.0
    assert isinstance(skipped, RewardError)
    assert "guard keeps it out of the update, which verl cannot" in str(skipped)
