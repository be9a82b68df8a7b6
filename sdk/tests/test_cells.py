"""A cell of an answer is a right number, or a text, or an error that names it: never a guess."""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from verl_reward_sdk import ContractError, RewardResult

masked = np.ma.array


class Evil:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class OddFloat(float):
    """Says another number than it is."""

    def __float__(self) -> float:
        return 777.0


class OddText(str):
    """Says another text than it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def result(**fields: Any) -> RewardResult:
    return RewardResult.of(RewardResult(**{"scores": [1.0, 0.5], **fields}), provider="m")


def checked(answer: RewardResult) -> tuple[list[float], list[bool]]:
    scores, scored = answer.checked(provider="m", n=2, score_range=(-10.0, 10.0))
    assert np.isnan(scores[~scored]).all()
    return scores[scored].tolist(), scored.tolist()


def refused(answer: RewardResult) -> ContractError:
    with pytest.raises(ContractError) as caught:
        checked(answer)
    assert str(caught.value).startswith("m: ")
    return caught.value


# -- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scores",
    [
        masked([0.5, -777.0], mask=[False, True]),
        masked([0.5, np.nan], mask=[False, True]),
        masked([0.5, "x"], mask=[False, True], dtype=object),
        masked([0.5, 1j], mask=[False, True], dtype=object),
        [0.5, np.ma.masked],
        (0.5, masked(3.0, mask=True)),
        deque([0.5, np.ma.masked]),
    ],
)
def test_a_masked_score_is_an_abstention(scores: Any) -> None:
    assert checked(RewardResult(scores=scores)) == ([0.5], [True, False])
    if isinstance(scores, (list, tuple, np.ndarray)):
        assert checked(RewardResult.of(scores, provider="m")) == ([0.5], [True, False])


def test_what_a_mask_does_not_hide_counts() -> None:
    assert checked(result(scores=masked([0.5, 3.0]))) == ([0.5, 3.0], [True, True])
    assert checked(result(scores=[0.5, masked(3.0)])) == ([0.5, 3.0], [True, True])
    assert checked(result(scores=masked([1.0, 2.0], mask=True))) == ([], [False, False])
    error = refused(result(scores=masked([99.0, 99.0], mask=[True, False])))
    assert (error.row, error.value) == (1, 99.0)


@pytest.mark.parametrize(
    "present",
    [masked([True, True], mask=[False, True]), [True, np.ma.masked], [True, None], [1, 0.0]],
)
def test_a_masked_entry_of_present_is_absent(present: Any) -> None:
    assert checked(result(present=present)) == ([1.0], [True, False])


@pytest.mark.parametrize(
    ("present", "value"), [([True, 2], 2.0), ([True, 0.5], 0.5), (np.array([1.0, np.nan]), np.nan)]
)
def test_present_is_true_or_false(present: Any, value: float) -> None:
    error = refused(result(present=present))
    assert error.row == 1
    assert error.value == pytest.approx(value, nan_ok=True)
    assert error.bound == "true or false"


@pytest.mark.parametrize(
    "values",
    [
        masked([4.0, -777.0], mask=[False, True]),
        masked([4, 5], mask=[False, True]),
        masked([4, "x"], mask=[False, True], dtype=object),
        [4, np.ma.masked],
        [4, masked(5, mask=True)],
        [4, None],
        np.array([4.0, np.nan]),
    ],
)
def test_a_masked_extra_is_nan(values: Any) -> None:
    answer = result(extras={"length": values})
    checked(answer)
    column = np.array(answer.extras["length"], dtype=np.float64)
    assert np.array_equal(column, [4.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("entry", [masked([0.5, 0.5], mask=[False, True]), masked([1.0])])
def test_masked_token_scores_are_refused(entry: Any) -> None:
    error = refused(result(token_scores=[entry, None]))
    assert "row 0: token scores that are masked" in str(error)
    assert checked(result(token_scores=[entry, None], failures={0: "?"}))[1] == [False, True]


# -- numbers -------------------------------------------------------------------------------------

NO_NUMBERS = [
    1j,
    np.complex64(1 + 2j),
    np.datetime64("2020-01-01"),
    np.timedelta64(5, "s"),
    b"1",
    "0.5",
    np.str_("0.5"),
    np.bytes_(b"1"),
    np.void(b"1"),
    Decimal("0.5"),
    Fraction(1, 2),
    Evil(),
    10**400,
    10**5000,
    {},
    object,
]


@pytest.mark.parametrize("cell", NO_NUMBERS, ids=lambda cell: type(cell).__name__)
@pytest.mark.parametrize("place", ["scores", "present", "extras", "array", "abstaining"])
def test_what_is_no_number_is_refused_with_its_row_and_value(cell: Any, place: str) -> None:
    if place == "array":
        cells = np.empty(2, dtype=object)
        cells[:] = [1.0, cell]
        error = refused(result(scores=cells))
    elif place == "abstaining":
        error = refused(result(scores=[None, cell]))
    elif place == "extras":
        error = refused(result(extras={"a": [1.0, cell]}))
        assert "extras['a']" in str(error)
    else:
        error = refused(result(**{place: [1.0, cell]}))
    assert (error.provider, error.row, error.bound) == ("m", 1, "float | None")
    assert len(str(error)) < 400  # it can be shown, and briefly


@pytest.mark.parametrize(
    "scores",
    [
        np.array([1j, 2]),
        np.array(["2020", "2021"], dtype="M8[Y]"),
        np.array([1, 2], dtype="m8[s]"),
        np.array([b"1", b"2"]),
        np.array(["0.5", "1"]),
        np.array([(1.0,), (2.0,)], dtype=[("a", "f8")]),
        masked([1j, 2], mask=[False, True]),
    ],
    ids=lambda scores: str(scores.dtype),
)
def test_an_array_of_no_numbers_is_refused_with_its_first_cell(scores: Any) -> None:
    for answer in (RewardResult(scores=scores), RewardResult.of(scores, provider="m")):
        error = refused(answer)
        assert error.row == 0
        assert "the score is no number: got " in str(error)
        assert repr(scores[0]) in str(error)


@pytest.mark.parametrize(
    "scores",
    [
        [True, 0],
        np.array([True, False]),
        [np.True_, np.float16(0)],
        np.array([1, 0], dtype=np.int8),
        [np.uint64(1), np.longdouble(0)],
        [np.array(1.0), np.array(0)],
        [OddFloat(1.0), 0],
        range(1, -1, -1),
        deque([1, 0]),
        np.array([1.0, 0.0]).view(np.recarray),
    ],
)
def test_whatever_is_a_number_is_that_number(scores: Any) -> None:
    assert checked(RewardResult(scores=scores)) == ([1.0, 0.0], [True, True])


def test_a_wider_float_beyond_float64_is_infinite_whatever_numpy_is_told() -> None:
    wide = np.full(2, np.finfo(np.longdouble).max)
    if float(wide[0]) != np.inf:
        pytest.skip("longdouble is float64 here")
    with np.errstate(all="raise"):
        for scores in (wide, list(wide)):
            assert "row 0: the score is not finite" in str(refused(result(scores=scores)))


@pytest.mark.parametrize(
    "scores", [[[0.5], [0.5]], [[0.5, 0.5]], 0.5, [], (1.0,), {1.0, 2.0}, "ab"]
)
def test_another_shape_is_refused(scores: Any) -> None:
    assert "wrong length" in str(refused(result(scores=scores)))


@pytest.mark.parametrize(
    "tokens", [[1j], ["0.5", "0.5"], [np.timedelta64(1, "s")], "1", [Evil()], 3j]
)
def test_token_scores_that_are_no_numbers_are_refused(tokens: Any) -> None:
    error = refused(result(token_scores=[None, tokens]))
    assert "row 1: token scores of neither form" in str(error)


# -- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["failures", "reasons"])
@pytest.mark.parametrize("text", [b"x", Evil(), 5, ["a"], np.bytes_(b"x"), 0.0])
def test_a_reason_that_is_no_text_is_refused(name: str, text: Any) -> None:
    error = refused(result(**{name: {1: text}}))
    assert f"row 1: {name} holds what is no text" in str(error)
    assert error.bound == "a text"


@pytest.mark.parametrize("name", ["failures", "reasons"])
@pytest.mark.parametrize(
    "row", [-1, 2, 10**400, 0.0, True, np.True_, "0", None, Evil(), np.timedelta64(0, "s"), (0,)]
)
def test_a_row_that_is_none_of_the_batch_is_refused(name: str, row: Any) -> None:
    error = refused(result(**{name: {row: "x"}}))
    assert f"{name} names a row that is not in the batch" in str(error)
    assert error.bound == "0 to 1"


@pytest.mark.parametrize("name", ["failures", "reasons", "extras"])
@pytest.mark.parametrize("value", [None, ["x"], "x"])
def test_what_is_no_mapping_is_refused(name: str, value: Any) -> None:
    assert f"{name} is no mapping" in str(refused(result(**{name: value})))


def test_texts_come_as_plain_ones() -> None:
    odd = OddText("odd")
    answer = result(failures={np.int64(1): odd}, reasons={np.uint8(0): "seen", 1: None})
    assert checked(answer) == ([1.0], [True, False])
    failures, reasons = answer.told(provider="m", n=2)
    assert (failures, reasons) == ({1: "odd"}, {0: "seen"})
    assert {type(x) for pair in failures.items() for x in pair} == {int, str}


def test_a_failure_has_a_reason() -> None:
    assert "row 0: failures holds what is no text: got None" in str(
        refused(result(failures={0: None}))
    )


@pytest.mark.parametrize("name", ["\ud800", "a\udfff", 3, b"a", None, Evil()])
def test_an_extra_s_name_is_a_text_that_a_file_can_hold(name: Any) -> None:
    error = refused(result(extras={name: [1.0, 2.0]}))
    assert "extras has a name that is no text" in str(error)
    assert checked(result(extras={"名": [1.0, 2.0]}))[1] == [True, True]
