"""YAML text to a `tree.Node`, and back.

YAML 1.2's core schema decides what a plain scalar is: ``1e-5`` is a number, ``yes`` and ``on`` are
text. What has no place in a run's settings is refused with its line and column: tags, duplicate
keys, ``.nan`` and ``.inf``, several documents, bytes that are not UTF-8, aliases that multiply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from verl_core.config.tree import Key, Node, Origin, Scalar
from verl_reward_sdk.errors import ConfigError, nearest

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 64
MAX_INTEGER = 1 << 63

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_REWARD = re.compile(rb"^[\"']?reward[\"']?\s*:", re.MULTILINE)
_SIGNS = list("-+.0123456789")

#: What ends a line in YAML 1.1, by which PyYAML counts them.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class _Resolver(BaseResolver):
    """The core schema of YAML 1.2, and 1.1's ``<<`` for merging."""


_Resolver.add_implicit_resolver(_TAG + "null", _NULL, ["~", "n", "N", ""])
_Resolver.add_implicit_resolver(_TAG + "bool", _BOOL, list("tTfF"))
_Resolver.add_implicit_resolver(_TAG + "int", _INT, _SIGNS)
_Resolver.add_implicit_resolver(_TAG + "float", _FLOAT, _SIGNS)
_Resolver.add_implicit_resolver(_TAG + "merge", re.compile(r"^<<$"), ["<"])


class _Loader(Reader, Scanner, Parser, Composer, _Resolver):
    """Text to nodes. There is no constructor in it, so that nothing can be constructed."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        _Resolver.__init__(self)


class _Dumper(yaml.SafeDumper):
    """Quotes what the core schema would read as something else."""

    yaml_implicit_resolvers = _Resolver.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _quoted_if_odd(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    # Outside double quotes PyYAML writes line breaks such as U+0085 that it reads back as another.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _quoted_if_odd)


def dump_yaml(value: Any) -> str:
    """Plain values as YAML that `parse_yaml` reads back as the same values."""
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
    )
    return text


def load_yaml(path: Path) -> Node:
    """Read a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, is not YAML, or holds what a run's YAML
            may not hold; with line and column.
    """
    name = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("no such file", file=name, hint=_similar_file(path)) from None
    except IsADirectoryError:
        raise ConfigError("this is a folder, a YAML file is needed", file=name) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=name) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES} bytes: no run's YAML is", file=name)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8-sig", "ignore")
        origin = _at_end_of(name, good)
        raise origin.error(
            f"byte 0x{raw[error.start]:02x} is not UTF-8", hint="save the file as UTF-8"
        ) from None
    return parse_yaml(text, name)


def plain_scalar(text: str, origin: Origin) -> Scalar:
    """What `text` is as a plain YAML scalar: ``8`` a number, ``true`` a boolean, else text."""
    tag = _Resolver().resolve(ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _scalar(ScalarNode(tag, text), origin)


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if _may_be_run(entry)]
    except OSError:
        return f"there is no folder {path.parent} either"
    match = nearest(path.name, names)
    return f"did you mean {str(path.parent / match)!r}?" if match else ""


def _may_be_run(path: Path) -> bool:
    """Whether `path` is a YAML with ``reward:``: a list of rules beside it is no run."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    with path.open("rb") as stream:
        return (
            re.search(rb"^[\"']?reward[\"']?\s*:", stream.read(MAX_BYTES), re.MULTILINE) is not None
        )


def _at_end_of(file: str, text: str) -> Origin:
    line = text.count("\n") + 1
    return Origin(file, line, len(text) - (text.rfind("\n") + 1) + 1)


def parse_yaml(text: str, file: str, *, override: Origin | None = None) -> Node:
    """Read YAML from `text`. With `override`, every node's origin is that override.

    Raises:
        ConfigError: as `load_yaml`.
    """
    try:
        _refuse_early(text, file, override)
        root = yaml.compose(text, Loader=_Loader)  # type: ignore[arg-type]
    except ReaderError as error:
        origin = override or _at_end_of(file, text[: error.position])
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise origin.error(f"character U+{code:04X} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        origin = override or _origin(file, mark)
        context = f"{error.context}, " if error.context else ""
        line = _LINE_BREAK.split(text)[mark.line] if mark is not None else text
        hint = _yaml_hint(error.problem or "", line)
        if not hint and override is None:
            hint = _unclosed(error)
        raise origin.error(f"not YAML: {context}{error.problem}", hint=hint) from None
    if root is None:
        return Node({}, override or Origin(file, 1, 1))
    return _Converter(file, override).convert(root, 0)


def _unclosed(error: yaml.MarkedYAMLError) -> str:
    """Where the bracket was opened whose end was looked for and not found; else empty."""
    opened = {"while parsing a flow mapping": "{", "while parsing a flow sequence": "["}
    bracket, mark = opened.get(error.context or ""), error.context_mark
    if bracket is None or mark is None:
        return ""
    closing = {"{": "}", "[": "]"}[bracket]
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"the {bracket} opened in {place} has no {closing} up to here"


def _yaml_hint(problem: str, line: str) -> str:
    if r"'\t'" in problem:
        return "indent with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        return "put quotes around a text that holds ': '"
    if "cannot start any token" in problem or "undefined alias" in problem:
        return "put quotes around a text that begins with a special character"
    if "${" in line:
        return "within { } or [ ], put quotes around ${…}"
    return ""


def _origin(file: str, mark: Any) -> Origin:
    return Origin(file) if mark is None else Origin(file, mark.line + 1, mark.column + 1)


def _refuse_early(text: str, file: str, override: Origin | None) -> None:
    """Refuse by the flat stream of events what would make composing recurse or construct."""
    depth = documents = count = 0
    for event in yaml.parse(text, Loader=_Loader):  # type: ignore[arg-type]
        origin = override or _origin(file, event.start_mark)
        count += isinstance(event, yaml.NodeEvent)
        if count > 2 * MAX_NODES:  # keys and values
            raise origin.error(f"more than {MAX_NODES} values: no run's YAML has so many")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise origin.error(
                    "a second YAML document begins here", hint="keep one, without ---"
                )
        tag = getattr(event, "tag", None)
        if tag is not None and tag != _TAG + "str":
            shown = tag.replace(_TAG, "!!") if tag.startswith(_TAG) else tag
            raise origin.error(f"the tag {shown} is not allowed", hint="write the plain value")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise origin.error(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


@dataclass
class _Converter:
    """PyYAML's nodes to ours, aliases written out, within bounds."""

    file: str
    override: Origin | None
    count: int = 0
    open: set[int] = field(default_factory=set)

    def place(self, node: Any) -> Origin:
        return self.override or _origin(self.file, node.start_mark)

    def convert(self, node: Any, depth: int) -> Node:
        origin = self.place(node)
        self.count += 1
        if self.count > MAX_NODES:
            raise origin.error(f"more than {MAX_NODES} values once its aliases are written out")
        if depth > MAX_DEPTH:
            raise origin.error(
                f"nested deeper than {MAX_DEPTH} levels once aliases are written out"
            )
        if isinstance(node, ScalarNode):
            return Node(_scalar(node, origin), origin, plain=node.style is None)
        if id(node) in self.open:
            raise origin.error("this value holds an alias of itself")
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return Node([self.convert(item, depth + 1) for item in node.value], origin)
            return Node(self.mapping(node, depth), origin)
        finally:
            self.open.discard(id(node))

    def mapping(self, node: MappingNode, depth: int) -> dict[Key, Node]:
        own: dict[Key, Node] = {}
        merged: dict[Key, Node] = {}
        for key_node, value_node in node.value:
            origin = self.place(key_node)
            if key_node.tag == _TAG + "merge":
                for key, value in self.merge(value_node, depth).items():
                    merged.setdefault(key, value)
                continue
            key = self.key(key_node, origin)
            if key in own:
                first = own[key].key_origin
                where = f" (first in line {first.line})" if first and first.line else ""
                raise origin.error(f"the key {key!r} stands here a second time{where}")
            own[key] = replace(self.convert(value_node, depth + 1), key_origin=origin)
        return {**merged, **own} if merged else own

    def merge(self, node: Any, depth: int) -> dict[Key, Node]:
        nodes = node.value if isinstance(node, SequenceNode) else [node]
        merged: dict[Key, Node] = {}
        for part in nodes:
            value = self.convert(part, depth + 1).value
            if not isinstance(value, dict):
                raise self.place(part).error("<< merges mappings only")
            for key, child in value.items():
                merged.setdefault(key, child)
        return merged

    def key(self, node: Any, origin: Origin) -> Key:
        value = _scalar(node, origin) if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise origin.error("a key must be text or a whole number", hint="put it in quotes")
        return value


def _scalar(node: ScalarNode, origin: Origin) -> Scalar:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return text[0] in "tT"
    if kind == "int":
        digits = text.lstrip("+-")
        base = {"0o": 8, "0x": 16}.get(digits[:2], 10)
        # Python refuses to read thousands of digits; anything near that is out of bounds already.
        number = int(text, base) if len(text) <= 40 else MAX_INTEGER
        if abs(number) >= MAX_INTEGER:
            raise origin.error(f"{text[:40]} is too large a number")
        return number
    if kind == "float":
        if text.lower().lstrip("+-") in (".inf", ".nan"):
            raise origin.error(f"{text} is not a number that can be used here")
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise origin.error(f"{text[:40]} is too large a number")
        return value
    return text if text.isascii() else _joined(text, origin)


def _joined(text: str, origin: Origin) -> str:
    """`text` with the two halves of a surrogate pair, as JSON escapes them, made one character."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        message = "half of a surrogate pair (\\ud800 …) is no character"
        raise origin.error(message) from None
