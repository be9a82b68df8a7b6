"""Prompts to token ids: through the template, and with errors that name the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_core.trainer.encoding import encode_and_open, encode_prompts
from verl_core.trainer.models import load_tokenizer
from verl_reward_sdk import ConfigError


@pytest.fixture
def tokenizer(tiny_model_dir: Path) -> Any:
    return load_tokenizer(tiny_model_dir)


def texts(tokenizer: Any, prompts: list[Any], **options: Any) -> list[str]:
    encoded = encode_prompts(tokenizer, prompts, 400, **options)
    assert all(row.dtype == np.int64 for row in encoded)
    return [str(tokenizer.decode(row.tolist())) for row in encoded]


def test_a_text_is_a_user_message(tokenizer: Any) -> None:
    wanted = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "user", "content": "hi"}]
    assert texts(tokenizer, ["hi", messages]) == [wanted, wanted]


def test_special_tokens_of_the_template_are_single_tokens(tokenizer: Any) -> None:
    (ids,) = encode_prompts(tokenizer, ["hi"], 400)
    assert ids[0] == tokenizer.bos_token_id
    assert (ids == tokenizer.bos_token_id).sum() == 2


def test_a_last_message_of_the_assistants_is_gone_on_with(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>"}]
    (text,) = texts(tokenizer, [messages])
    assert text.endswith("<|im_start|>assistant\n<think>")


def test_without_a_template_the_text_stands_alone(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert texts(tokenizer, ["plain", messages]) == ["plain", "be kind\nhi"]


@pytest.mark.parametrize("empty", ["", "  \n", [], [{"role": "user", "content": " "}]])
def test_an_empty_prompt_names_its_row(tokenizer: Any, empty: Any) -> None:
    with pytest.raises(ConfigError, match="row 'q-2': its prompt is empty"):
        encode_prompts(tokenizer, ["fine", empty], 400, row_ids=["q-1", "q-2"])


def test_a_prompt_over_its_bound_names_its_row_and_the_length_needed(tokenizer: Any) -> None:
    prompts = ["short", "x" * 60, "x" * 90]
    with pytest.raises(ConfigError) as caught:
        encode_prompts(tokenizer, prompts, 50, row_ids=["a", "b", "c"])
    said = str(caught.value)
    assert "row 'b': its prompt has 79 tokens, but max_prompt_tokens is 50" in said
    assert "1 more rows are too long" in said
    assert "allow 109 tokens" in said


def test_a_prompt_and_its_response_must_fit_into_the_context(tokenizer: Any) -> None:
    encode_prompts(tokenizer, ["x" * 60], 400, context=100, max_new_tokens=21)
    with pytest.raises(ConfigError, match=r"79 tokens, but the model's context is 100 tokens"):
        encode_prompts(tokenizer, ["x" * 60], 400, context=100, max_new_tokens=22)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (3, "is a int, not a text"),
        (None, "is a NoneType, not a text"),
        ([{"role": "user"}], "not an object with a role and a content"),
        (["hi"], "not an object with a role and a content"),
        ([{"role": "user", "content": 3}], "not an object with a role and a content"),
    ],
)
def test_what_is_no_prompt_names_its_row(tokenizer: Any, prompt: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"row '0'.*{said}"):
        encode_prompts(tokenizer, [prompt], 400)


def test_what_the_template_refuses_names_its_row(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(ConfigError, match=r"row 'r7'.*no system role here"):
        encode_prompts(tokenizer, ["hi"], 400, row_ids=["r7"])


def test_no_prompts_are_no_ids(tokenizer: Any) -> None:
    assert encode_prompts(tokenizer, [], 10) == []


OPENING = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("end", "prompt", "opened"),
    [
        ("<assistant><think>\n", "Why?", "<think>\n"),
        ("<assistant>", "Why?", ""),
        ("<assistant><think>\n\n</think>\n\n", "Why?", ""),
        ("<assistant>", "What does <think> mean?", ""),
        ("<assistant>", "Say <think>", ""),
        ("", [{"role": "assistant", "content": "<think>Let me"}], "<think>Let me"),
        ("", [{"role": "assistant", "content": "<think>no</think>So"}], ""),
        ("", [{"role": "assistant", "content": "So"}], ""),
    ],
)
def test_thinking_that_a_prompt_opens_is_told(
    tokenizer: Any, end: str, prompt: Any, opened: str
) -> None:
    tokenizer.chat_template = OPENING + ("{% if add_generation_prompt %}" + end + "{% endif %}")
    ids, found = encode_and_open(tokenizer, ["Hi", prompt], 400)
    assert len(ids) == 2
    assert found[1] == opened
