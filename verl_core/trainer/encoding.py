"""From prompts to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_reward_sdk import ConfigError, Prompt

_THINK, _THINK_END = "<think>", "</think>"


def encode_prompts(
    tokenizer: Any, prompts: Sequence[Prompt], max_prompt_tokens: int, **options: Any
) -> list[NDArray[np.int64]]:
    """Token ids of each prompt, ready to be answered; arguments as of `encode_and_open`."""
    return encode_and_open(tokenizer, prompts, max_prompt_tokens, **options)[0]


def encode_and_open(
    tokenizer: Any,
    prompts: Sequence[Prompt],
    max_prompt_tokens: int,
    *,
    row_ids: Sequence[str] | None = None,
    context: int | None = None,
    max_new_tokens: int = 0,
) -> tuple[list[NDArray[np.int64]], list[str]]:
    """Token ids of each prompt, and the thinking that it opens for its response.

    A text is one user message. Messages go through the tokenizer's chat template, and the
    assistant's turn is opened behind them; a last message of the assistant's is gone on with. A
    tokenizer without a template gets the plain text, messages one a line.

    Args:
        tokenizer: of `load_tokenizer`.
        prompts: texts or lists of messages ``{"role": …, "content": …}``.
        max_prompt_tokens: a longer prompt is an error; nothing is cut.
        row_ids: what errors call the rows; their numbers from 0 where None.
        context: the model's, where it has one; prompt and `max_new_tokens` must fit into it.
        max_new_tokens: room that the response needs.

    Returns:
        The ids, and a text each: an open ``<think>`` at the prompt's end, with what follows it in
        the assistant's own turn; empty where there is none.

    Raises:
        ConfigError: a prompt is empty, too long, not made of messages, or refused by the
            template; it names the row, and how many more there are.
    """
    names = [str(i) for i in range(len(prompts))] if row_ids is None else list(row_ids)
    texts = [_render(tokenizer, prompt, name) for prompt, name in zip(prompts, names, strict=True)]
    if not texts:
        return [], []
    # A template writes its own special tokens.
    encoded = tokenizer(
        texts, add_special_tokens=not tokenizer.chat_template, verbose=False, truncation=False
    )["input_ids"]
    ids = [np.asarray(row, dtype=np.int64) for row in encoded]
    _check_lengths(ids, names, max_prompt_tokens, context, max_new_tokens)
    pairs = zip(prompts, texts, strict=True)
    return ids, [_opened(_own_turn(prompt), text) for prompt, text in pairs]


def _own_turn(prompt: Prompt) -> str:
    """What the prompt itself has of the assistant's answer."""
    if isinstance(prompt, str) or prompt[-1]["role"] != "assistant":
        return ""
    return str(prompt[-1]["content"])


def _opened(own_turn: str, text: str) -> str:
    """The thinking that is open at the end of the rendered `text`: begun in `own_turn`, or the
    last thing that the template writes."""
    start = text.rfind(_THINK)
    if start < 0 or _THINK_END in text[start:]:
        return ""
    return text[start:] if _THINK in own_turn or not text[start + len(_THINK) :].strip() else ""


def _render(tokenizer: Any, prompt: Prompt, name: str) -> str:
    """The text that the model reads."""
    messages = _messages(prompt, name)
    if not tokenizer.chat_template:
        return "\n".join(message["content"] for message in messages)
    last_is_ours = messages[-1]["role"] == "assistant"
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=not last_is_ours,
            continue_final_message=last_is_ours,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigError(
            f"row {name!r}: the model's chat template refuses its prompt: {error}",
            hint="roles are usually system, user and assistant, user and assistant in turn",
        ) from error
    return str(text)


def _messages(prompt: Prompt, name: str) -> list[dict[str, Any]]:
    """`prompt` as messages, none of them without text to answer."""
    if isinstance(prompt, str):
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, Sequence):
        messages = []
        for message in prompt:
            if not (
                isinstance(message, Mapping)
                and isinstance(message.get("role"), str)
                and isinstance(message.get("content"), str)
            ):
                raise ConfigError(
                    f"row {name!r}: its prompt has a message that is not an object with a role "
                    f"and a content, both texts: {message!r:.80}"
                )
            messages.append(dict(message))
    else:
        raise ConfigError(
            f"row {name!r}: its prompt is a {type(prompt).__name__}, not a text or a list of "
            "messages"
        )
    if not any(message["content"].strip() for message in messages):
        raise ConfigError(
            f"row {name!r}: its prompt is empty", hint="remove the row, or give it a prompt"
        )
    return messages


def _check_lengths(
    ids: Sequence[NDArray[np.int64]],
    names: Sequence[str],
    max_prompt_tokens: int,
    context: int | None,
    max_new_tokens: int,
) -> None:
    room = max_prompt_tokens
    bound = f"max_prompt_tokens is {max_prompt_tokens}"
    if context is not None and context - max_new_tokens < room:
        room = context - max_new_tokens
        bound = (
            f"the model's context is {context} tokens and max_new_tokens takes {max_new_tokens} "
            "of them"
        )
    beyond = [place for place, row in enumerate(ids) if len(row) > room]
    if beyond:
        longest = max(beyond, key=lambda place: len(ids[place]))
        more = f" (and {len(beyond) - 1} more rows are too long)" if len(beyond) > 1 else ""
        raise ConfigError(
            f"row {names[beyond[0]]!r}: its prompt has {len(ids[beyond[0]])} tokens, "
            f"but {bound}{more}",
            hint=f"shorten the prompts, or allow {len(ids[longest])} tokens",
        )
    for place, row in enumerate(ids):
        if len(row) == 0:
            raise ConfigError(f"row {names[place]!r}: its prompt has no tokens")
