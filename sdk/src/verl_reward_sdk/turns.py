"""Prompts and responses as texts and as turns, and the thinking that a response begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_reward_sdk.errors import ContractError

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def as_text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(_content(message) for message in prompt)


def as_messages(prompt: Prompt) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def last_turn(completion: Prompt) -> str:
    if isinstance(completion, str):
        return completion
    is_list = isinstance(completion, Sequence) and not isinstance(completion, bytes)
    if is_list and (not completion or isinstance(completion[-1], Mapping)):
        return _content(completion[-1]) if completion else ""
    raise ContractError(
        "a completion is neither a text nor a list of messages",
        provider="batch",
        value=type(completion).__name__,
        bound="a text, or messages with role and content",
    )


def _content(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))


def split_thinking(raw: str) -> tuple[str, str | None]:
    """``(thinking, closing mark or None)``: None where the response does no thinking at all."""
    if _THINK_CLOSE in raw:
        return raw.split(_THINK_CLOSE, 1)[0].split(_THINK_OPEN, 1)[-1], _THINK_CLOSE
    if _THINK_OPEN in raw:
        return raw.split(_THINK_OPEN, 1)[1], _THINK_OPEN
    return "", None


def without_thinking(response: str, raw: str) -> str:
    mark = split_thinking(raw)[1]
    return response if mark is None else _after_thinking(response, mark)


def _after_thinking(response: str, mark: str) -> str:
    """The part of `response` behind the thinking that ends (or never ends) with `mark`."""
    if mark == _THINK_OPEN:
        return ""
    return response.split(_THINK_CLOSE, 1)[-1].lstrip() if _THINK_CLOSE in response else response
