"""Sampled ids to text: what transformers' own ``batch_decode`` gives, by the shorter way or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from verl_core.rewards.decoding import ResponseDecoder, special_ids


def by_transformers(tokenizer: Any, rows: Any, skip: bool) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(
        rows, skip_special_tokens=skip, clean_up_tokenization_spaces=False
    )
    return texts


@pytest.fixture(params=["smol", "tiny"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def sampled(tokenizer: Any, rows: int = 200) -> list[np.ndarray]:
    """Rows of any tokens at all, special ones and halves of characters among them."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 40, rows)
    return [draw.integers(0, len(tokenizer), length) for length in lengths]


def test_texts_are_those_of_transformers_with_and_without_special_tokens(tokenizer: Any) -> None:
    rows = sampled(tokenizer)
    rows[7] = np.array(sorted(special_ids(tokenizer)))
    found = ResponseDecoder(tokenizer).both(rows)
    wanted = [by_transformers(tokenizer, [row.tolist() for row in rows], s) for s in (True, False)]
    assert found == (wanted[0], wanted[1])
    assert wanted[0] != wanted[1]


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>", "<repo_name>"])
def test_a_special_token_at_the_end_alone_is_put_behind_the_text(smol: Any, end: str) -> None:
    """Rows that end in half a character among them; and rows that hold one before it too."""
    number = smol.convert_tokens_to_ids(end)
    draw = np.random.default_rng(1)
    plain = sorted(set(range(len(smol))) - special_ids(smol))
    halves = [token for token in plain[:400] if "\ufffd" in smol.decode([token])]
    rows = [[*draw.choice(plain, n).tolist(), number] for n in draw.integers(0, 30, 300)]
    rows += [[*row[:-1], *draw.choice(halves, 2).tolist(), number] for row in rows]
    rows += [[number], [number, number], [plain[0], number, plain[1], number]]
    wanted = [by_transformers(smol, rows, skip) for skip in (True, False)]
    assert sum(text.endswith("\ufffd") for text in wanted[0]) > 100
    assert ResponseDecoder(smol).both(rows) == (wanted[0], wanted[1])


def test_a_special_token_without_a_role_is_left_out_of_the_response_alone(smol: Any) -> None:
    """`all_special_ids` does not name it, and yet ``skip_special_tokens`` skips it."""
    token = smol.convert_tokens_to_ids("<repo_name>")
    assert token not in smol.all_special_ids
    row = [*smol("hi")["input_ids"], token]
    assert ResponseDecoder(smol).both([row]) == (["hi"], ["hi<repo_name>"])


def test_one_row_and_no_row(tokenizer: Any) -> None:
    ids = tokenizer("a , b", add_special_tokens=False)["input_ids"]
    decoder = ResponseDecoder(tokenizer)
    assert decoder.text([*ids, tokenizer.eos_token_id]) == "a , b"
    assert decoder.both([]) == ([], [])
    assert decoder.both([np.array([], dtype=np.int64)]) == ([""], [""])


def test_a_tokenizer_that_decodes_in_its_own_way_is_asked_itself(tiny: Any) -> None:
    class Loud(PreTrainedTokenizerFast):
        def _decode(self, token_ids: Any, *args: Any, **options: Any) -> str:
            return super()._decode(token_ids, *args, **options).upper()

    loud = Loud(tokenizer_object=tiny.backend_tokenizer, eos_token=tiny.eos_token)
    ids = tiny("a , b", add_special_tokens=False)["input_ids"]
    assert ResponseDecoder(tiny).text(ids) == "a , b"
    assert ResponseDecoder(loud).text(ids) == "A , B"


def test_a_tokenizer_of_another_make_needs_batch_decode_only() -> None:
    class Words:
        all_special_ids = (0,)

        def batch_decode(self, rows: Any, skip_special_tokens: bool, **_: Any) -> list[str]:
            return [" ".join(str(i) for i in row if i or not skip_special_tokens) for row in rows]

    assert ResponseDecoder(Words()).both([[1, 2, 0], [3]]) == (["1 2", "3"], ["1 2 0", "3"])
