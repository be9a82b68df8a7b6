"""On which token of a response a character lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rewards.decoders import decoder, utf8
from verl_core.rewards.offsets import token_offsets

TEXTS = [
    "Step 1: add.\nStep 2: divide by 3.\n\nThe answer is 42.",
    "价格是一百二十元，明天发货。谢谢您的耐心！",
    "👍🏽 great 👨‍👩‍👧‍👦, isn't it? 🇩🇪",
    "cafe\u0301 nai\u0308ve Z\u0351\u036b\u0343 \u0e01\u0e33 \u202eabc",
    "  two  spaces, a\ttab \u00a0 and a no-break one ",
    "x",
    "\ufffd literally \ufffd\ufffd",
]


def by_every_prefix(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[int]:
    """The definition: characters that a prefix shares with the whole text; never fewer again."""
    text, lengths = decode(list(ids)) if ids else "", [0]
    for t in range(1, len(ids) + 1):
        pairs = zip(decode(list(ids[:t])), text, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        lengths.append(max(lengths[-1], shared))
    return lengths


class Counting:
    """A decoder that counts the tokens it was given."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode, self.tokens = decode, 0

    def __call__(self, ids: list[int]) -> str:
        self.tokens += len(ids)
        return self._decode(ids)


def other_tokenizers() -> dict[str, Any]:
    """Decoders that look at a token's neighbours, over characters and bytes as tokens."""
    from tokenizers import Tokenizer, decoders, models

    byte_names = [f"<0x{i:02X}>" for i in range(256)]
    letters = [*"abcdef.,!?'", "▁", "▁a", "▁the", "▁bad", "n't", " .", "##ab", "##c"]
    vocab = {piece: i for i, piece in enumerate(byte_names + letters)}
    found = {}
    for name, chain in {
        "sentencepiece": decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
        "wordpiece": decoders.WordPiece(prefix="##", cleanup=True),
        "metaspace": decoders.Metaspace(),
    }.items():
        found[name] = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        found[name].decoder = chain
    return found


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_of_smollm2_are_those_of_growing_prefixes(smol: Any, text: str) -> None:
    decode = decoder(smol)
    ids = [*smol.encode(text), smol.eos_token_id]
    assert token_offsets(decode, ids).tolist() == by_every_prefix(decode, ids)
    assert token_offsets(decode, ids)[-1] == len(text)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_offsets_of_ids_that_no_encoder_would_choose(smol: Any, data: st.DataObject) -> None:
    """As a policy samples them: bytes that end nowhere, special tokens in the middle."""
    ids = data.draw(st.lists(st.integers(0, len(smol) - 1), max_size=90))
    decode = decoder(smol)
    assert token_offsets(decode, ids).tolist() == by_every_prefix(decode, ids)


@settings(max_examples=200, deadline=None)
@given(
    chunks=st.lists(
        st.one_of(
            st.text(max_size=12).map(lambda text: list(text.encode("utf-8", "replace"))),
            st.lists(st.integers(0, 299), max_size=6),
        ),
        max_size=30,
    )
)
def test_offsets_of_bytes_are_those_of_growing_prefixes(chunks: list[list[int]]) -> None:
    ids = [i for chunk in chunks for i in chunk]
    assert token_offsets(utf8, ids).tolist() == by_every_prefix(utf8, ids)


@pytest.mark.parametrize("name", ["sentencepiece", "wordpiece", "metaspace"])
def test_offsets_of_decoders_that_look_at_neighbours(name: str) -> None:
    tokenizer = other_tokenizers()[name]
    rng = np.random.default_rng(7)
    for _ in range(60):
        ids = rng.integers(0, tokenizer.get_vocab_size(), size=int(rng.integers(0, 70))).tolist()
        letters = [i if i > 255 else int(rng.integers(256, 275)) for i in ids]
        for some in (ids, letters):
            assert token_offsets(tokenizer.decode, some).tolist() == by_every_prefix(
                tokenizer.decode, some
            )


def test_a_decoder_that_needs_the_whole_prefix_gets_it() -> None:
    def numbered(ids: list[int]) -> str:
        return "".join(f"{place}:{token} " for place, token in enumerate(ids))

    ids = list(range(100))
    assert token_offsets(numbered, ids).tolist() == by_every_prefix(numbered, ids)


def test_a_long_response_does_not_cost_its_square() -> None:
    ids = list(("Ein Bär 🐻 läuft. " * 200).encode())
    decode = Counting(utf8)
    assert token_offsets(decode, ids)[-1] == len(utf8(ids))
    assert decode.tokens < 3 * len(ids) ** 1.5 < len(ids) ** 2 / 10


def test_a_character_of_several_tokens_lies_on_the_one_that_completes_it(tiny: Any) -> None:
    ids = tiny.encode("a👍b")
    assert len(ids) == 6
    assert token_offsets(decoder(tiny), ids).tolist() == [0, 1, 1, 1, 1, 2, 3]


def test_special_tokens_have_no_width(tiny: Any) -> None:
    start, end = tiny.bos_token_id, tiny.eos_token_id
    ids = [start, *tiny.encode("hi"), start, *tiny.encode("!"), end]
    assert token_offsets(decoder(tiny), ids).tolist() == [0, 0, 1, 2, 2, 3, 3]


def test_no_tokens_have_no_characters() -> None:
    def never(ids: list[int]) -> str:
        raise AssertionError("nothing is to be decoded")

    assert token_offsets(never, []).tolist() == [0]


def test_a_response_that_ends_within_a_character_shows_what_its_text_shows() -> None:
    ids = [*b"ab", 0xE4, 0xBD]
    assert utf8(ids) == "ab\ufffd"
    assert token_offsets(utf8, ids).tolist() == [0, 1, 2, 3, 3]
