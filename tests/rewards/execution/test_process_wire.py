"""What worker processes may send, and what is made of anything else."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from verl_core.rewards.execution import process_wire
from verl_core.rewards.execution.process_wire import pack_answer, pack_error, unpack
from verl_reward_sdk import ConfigError, ContractError, PluginError, ProviderTimeout, RewardResult


def packed(answer, n=1):
    return pack_answer(answer, provider="m", n=n, score_range=(-1.0, 1.0))


def test_a_frame_that_names_a_class_is_refused_before_it_is_made(tmp_path):
    class Evil:
        """Runs code where it is unpickled."""

        def __reduce__(self):
            return (tmp_path / "made").write_text, ("",)

    for content in (Evil(), {"kind": "answer", "scores": np.zeros(1)}):
        with pytest.raises(ValueError, match=r"cannot be read .*it names a class"):
            unpack(pickle.dumps(content, protocol=5))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [3, {}, {"kind": "answer"}, {"kind": "error"}, {"kind": "?"}])
def test_a_frame_of_another_form_is_refused(content):
    with pytest.raises(ValueError, match="what its worker sent cannot be read"):
        unpack(pickle.dumps(content))
    with pytest.raises(ValueError, match="what its worker sent cannot be read"):
        unpack(b"nothing like a pickle")


def test_an_answer_that_is_too_large_is_a_breach_of_contract(monkeypatch):
    monkeypatch.setattr(process_wire, "MAX_ANSWER", 2**20)
    fits = packed(RewardResult(scores=[1.0], reasons={0: "x" * 10**5}))
    assert unpack(fits).reasons == {0: "x" * 10**5}
    with pytest.raises(ContractError, match=r"m: the answer is too large: got '2 MiB', expected"):
        packed(RewardResult(scores=[1.0], reasons={0: "x" * 2**21}))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1.0, 1.0], "wrong length: got 2, expected 1 rows"),
        ([float("nan")], "row 0: the score is not finite"),
        ([2.0], r"row 0: the score is outside score_range: got 2.0, expected \[-1, 1\]"),
        ("1", "the answer is no sequence of scores: got 'str'"),
        ([object()], "row 0: the score is no number: got <object"),
        (RewardResult(scores=[1.0], extras={"a": ["b"]}), "holds no numbers"),
        (RewardResult(scores=[1.0], token_scores=["text"]), "row 0: token scores of neither form"),
        (
            RewardResult(scores=[1.0], token_scores=[[(0, 1)]]),
            "row 0: token scores of neither form",
        ),
    ],
)
def test_an_answer_that_breaks_the_contract_comes_as_the_same_error(answer, said):
    with pytest.raises(ContractError, match=said) as raised:
        packed(answer)
    with pytest.raises(ContractError, match=said) as come:
        unpack(pack_error(raised.value))
    assert str(come.value) == str(raised.value)
    assert come.value.row == raised.value.row


def test_errors_of_the_sdk_keep_their_class_and_their_places():
    error = PluginError("no such plugin", file="run.yaml", line=3, path="reward.m", hint="install")
    with pytest.raises(PluginError) as come:
        unpack(pack_error(error))
    assert (str(come.value), come.value.line) == (str(error), 3)

    class Narrower(ConfigError):
        """A plugin's own."""

    with pytest.raises(ConfigError, match="x: narrow"):
        unpack(pack_error(Narrower("narrow", path="x")))
    with pytest.raises(ProviderTimeout, match="too slow"):
        unpack(pack_error(ProviderTimeout("too slow")))


def test_an_exception_that_cannot_be_shown_is_told_all_the_same():
    class Unspeakable(Exception):
        """Raises where its text is asked for."""

        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(process_wire.RaisedInWorker, match=r"Unspeakable: .*cannot be shown"):
        unpack(pack_error(Unspeakable()))
