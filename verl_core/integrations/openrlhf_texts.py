"""OpenRLHF's texts: a query is the prompt with the response behind it, special tokens and all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from verl_reward_sdk.errors import ConfigError, RewardError, nearest

#: How a special token at the end of a text looks, where no tokenizer says which there are.
_LIKELY_END = re.compile(
    r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜]{1,40}｜>|</?s>|<(?:eos|bos|pad|end_of_turn)>|\[PAD\])\Z"
)
_LONGEST_END = 44
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
#: A prompt that was cut at its beginning is known by an end of at least so many characters.
_LEAST_END = 16


class Texts:
    """Takes queries apart.

    OpenRLHF encodes the prompt, cuts it at its beginning where it is too long, and decodes it with
    the response behind it. Without a tokenizer only a prompt that stands there letter by letter can
    be cut off, special tokens are known by their look (``<|im_end|>``, ``</s>``) and only at a
    response's end, and nothing tells whether a response was cut off.

    Args:
        tokenizer: the policy's: a transformers tokenizer, or its folder or hub name, from which it
            is loaded when it is first needed; or None.

    Raises:
        ConfigError: `tokenizer` is a path, and no folder is there.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._given = _checked(tokenizer)
        self._special: re.Pattern[str] | None = None
        self._ends: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Texts, (self._given,)

    def load(self) -> None:
        """Load the tokenizer. Does nothing where there is none, or the second time.

        Raises:
            ConfigError: it cannot be loaded.
        """
        if self._given is None or self._special is not None:
            return
        if isinstance(self._given, str | Path):
            self._given = _loaded(str(self._given))
        tokens = sorted(set(self._given.all_special_tokens), key=len, reverse=True)
        self._ends = tuple(tokens)
        self._special = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")

    def response_of(self, query: str, prompt: str, row: int) -> str:
        """The response in a query, special tokens and all.

        Raises:
            RewardError: the query does not begin with the prompt, in no form that is known.
        """
        if query.startswith(prompt):
            return query[len(prompt) :]
        hint = "OpenRLHF decodes the prompt's tokens, which may change the text: give the tokenizer"
        if self._given is not None:
            ids = self._given(text=prompt, add_special_tokens=False)["input_ids"]
            text = self._given.decode(ids, skip_special_tokens=False)
            if query.startswith(text):
                return query[len(text) :]
            end = _cut(text, query)
            if end is not None:
                return query[end:]
            hint = "the tokenizer does not write the prompt like this either"
        raise RewardError(
            f"row {row}: the query does not begin with its prompt, so that nobody knows where its"
            f" response begins: {query[:60]!r} against {prompt[:60]!r} ({hint})"
        )

    def clean(self, raw: str) -> str:
        """A response without special tokens."""
        if self._special is not None:
            return self._special.sub("", raw)
        end = len(raw)
        # Only where a token may begin is looked at: the whole text again for each token takes long.
        while (found := _LIKELY_END.search(raw, max(0, end - _LONGEST_END), end)) is not None:
            end = found.start()
        return raw[:end]

    def finish_reason(self, raw: str) -> str:
        """``stop``, or ``length`` for a response that no special token ends."""
        return "stop" if not self._ends or raw.endswith(self._ends) else "length"


def _checked(tokenizer: Any) -> Any:
    """`tokenizer`, unless it is the path of a folder that is not there."""
    if not isinstance(tokenizer, str | Path):
        return tokenizer
    path = Path(tokenizer).expanduser()
    if path.is_dir():
        return str(path)
    is_path = isinstance(tokenizer, Path) or _HUB_ID.fullmatch(tokenizer) is None
    if not is_path and not path.exists():
        return tokenizer
    found = "is a file" if path.is_file() else "is not there"
    raise ConfigError(
        f"tokenizer: the folder {str(tokenizer)!r} {found}", hint=_near_folder(path.absolute())
    )


def _near_folder(path: Path) -> str:
    if path.is_file():
        return f"give its folder, {str(path.parent)!r}"
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    except OSError:
        return f"there is no folder {path.parent}"
    near = nearest(path.name, names)
    return f"did you mean {str(path.parent / near)!r}?" if near else "give the policy's folder"


def _loaded(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # a folder's files raise whatever their parsers raise
        said = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"tokenizer: {name!r} cannot be loaded: {type(error).__name__}: {said}",
            hint="give a folder that holds the policy's tokenizer, or a name that the hub has",
        ) from error


def _cut(prompt: str, query: str) -> int | None:
    """How long the end of `prompt` is with which `query` begins; None where that is none."""
    begin = query[:_LEAST_END]
    place = prompt.find(begin) if len(begin) == _LEAST_END else -1
    while place >= 0:
        if query.startswith(prompt[place:]):
            return len(prompt) - place
        place = prompt.find(begin, place + 1)
    return None
