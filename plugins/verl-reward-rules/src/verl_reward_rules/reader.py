"""Typed values out of YAML nodes; each refusal names file, line, column and path."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from verl_reward_sdk import ConfigError, did_you_mean

# YAML 1.1 takes 1:30 for ninety and 1e-3 for a text; a number here is what JSON calls one.
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_KINDS = {"bool": "a boolean", "int": "a number", "float": "a number", "timestamp": "a date"}


@dataclass(frozen=True)
class Value:
    """A node at its place.

    Args:
        node: the YAML node.
        file: the file it stands in.
        path: its YAML path, with rules by name: ``rules.greeting.regex``.
    """

    node: yaml.Node
    file: Path
    path: str = ""

    def called(self, path: str) -> Value:
        """The same value under another path."""
        return replace(self, path=path)

    def error(self, message: str, hint: str | None = None) -> ConfigError:
        """`message` at this value's place; to be raised."""
        mark = self.node.start_mark
        return ConfigError(
            message,
            file=self.file,
            line=mark.line + 1,
            column=mark.column + 1,
            path=self.path or None,
            hint=hint,
        )

    def fields(self, known: Collection[str]) -> Mapping[str, Value]:
        """The values of a mapping, whose keys must be among `known` and stand there once."""
        if not self.is_mapping:
            raise self.error(f"expected a mapping, found {self.found}")
        values: dict[str, Value] = {}
        for key_node, node in self.node.value:
            # The scalar as it is written: YAML 1.1 takes a bare `on` for true.
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            at_key = Value(key_node, self.file, self.path)
            if key is None or key not in known:
                shown = at_key.found if key is None else repr(key)
                raise at_key.error(f"unknown key {shown}", did_you_mean(str(key), known))
            if key in values:
                first = values[key].node.start_mark.line + 1
                raise at_key.error(f"the key {key!r} stands twice", f"first in line {first}")
            values[key] = Value(node, self.file, f"{self.path}.{key}".lstrip("."))
        return values

    def items(self) -> list[Value]:
        """The values of a list that is not empty."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"expected a list, found {self.found}")
        if not self.node.value:
            raise self.error("the list is empty")
        return [
            Value(node, self.file, f"{self.path}[{position}]")
            for position, node in enumerate(self.node.value)
        ]

    def text(self) -> str:
        """A text that is not empty."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"expected a text, found {self.found}")
        if not self.node.tag.endswith(":str"):
            hint = "write it in quotes" if self.node.value else None
            raise self.error(f"expected a text, found {self.found}", hint)
        try:
            # A JSON-style pair of escapes ("\\ud83d\\ude42") becomes the character it stands for.
            text = self.node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise self.error(f"{self.node.value!a} holds half a surrogate pair") from error
        if not text.strip():
            raise self.error("the text is empty")
        return str(text)

    def texts(self) -> tuple[str, ...]:
        """One text, or a list of them."""
        if isinstance(self.node, yaml.SequenceNode):
            return tuple(item.text() for item in self.items())
        return (self.text(),)

    def choice(self, options: Collection[str]) -> str:
        """One of a few words."""
        word = self.text()
        if word not in options:
            raise self.error(
                f"{word!r} is none of {', '.join(options)}", did_you_mean(word, options)
            )
        return word

    def number(self) -> float:
        """A finite number."""
        if not self._plain or not _NUMBER.fullmatch(self.node.value):
            message = f"expected a finite number, found {self.found}"
            quoted = isinstance(self.node, yaml.ScalarNode) and self.node.style in ("'", '"')
            raise self.error(message, "write it without quotes" if quoted else None)
        number = float(self.node.value)
        if not math.isfinite(number):
            raise self.error(f"expected a finite number, found {self.node.value}")
        return number

    def count(self) -> int:
        """A whole number that is not negative."""
        number = self.number()
        if number < 0 or number != int(number):
            raise self.error(f"expected a whole number of 0 or more, found {self.node.value}")
        return int(number)

    def flag(self) -> bool:
        """``true`` or ``false``."""
        if not self._plain or self.node.value.lower() not in ("true", "false"):
            raise self.error(f"expected true or false, found {self.found}")
        return bool(self.node.value.lower() == "true")

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def found(self) -> str:
        """What stands there, in words."""
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        kind = _KINDS.get(self.node.tag.rsplit(":", 1)[-1])
        if kind is not None:
            return f"{kind} ({self.node.value})"
        return repr(self.node.value) if self.node.value else "nothing"

    @property
    def _plain(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.style is None
