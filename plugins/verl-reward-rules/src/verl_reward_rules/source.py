"""A YAML file as a tree of nodes that know their line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from verl_reward_sdk import ConfigError

#: A rule file is written by hand; whatever is larger was meant for something else.
MAX_BYTES = 1024 * 1024
#: Rules need a depth of about five.
MAX_DEPTH = 32


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes without aliases (they can unfold to gigabytes) and without tags."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused(f"the alias *{event.anchor} is not allowed here", event)
        if getattr(event, "tag", None) is not None:
            raise _refused(f"the tag {event.tag} is not allowed here", event)
        if self._depth >= MAX_DEPTH:
            raise _refused(f"more than {MAX_DEPTH} levels of nesting", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read_yaml(path: Path) -> yaml.Node:
    """The root node of a file.

    Raises:
        ConfigError: unreadable, too large, not UTF-8, no YAML, empty, or with aliases or tags.
    """
    text = _text(path)
    try:
        root = yaml.compose(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(
            ", ".join(part for part in (error.context, error.problem) if part),
            file=path,
            line=None if mark is None else mark.line + 1,
            column=None if mark is None else mark.column + 1,
        ) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        raise ConfigError(
            f"the character {text[error.position]!a} is not allowed in YAML",
            file=path,
            line=before.count("\n") + 1,
            column=len(before) - before.rfind("\n"),
        ) from error
    if root is None:
        raise ConfigError("the file is empty", file=path, hint="write rules: [...]")
    return root


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the rule file: {error.strerror or error}", file=path
        ) from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            f"the file has more than {MAX_BYTES // 1024} KiB, too much for rules", file=path
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            file=path,
            line=raw.count(b"\n", 0, error.start) + 1,
            hint="save the file as UTF-8",
        ) from error
