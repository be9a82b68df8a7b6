"""Conditions that a mount writes: ``applies_to:``, ``when:`` and ``only_if:``.

    condition  := and ("or" and)*
    and        := not ("and" not)*
    not        := "not" not | comparison
    comparison := operand [op operand] | "(" condition ")"
    op         := == | != | < | <= | > | >= | in | not in
    operand    := name | number | text | true | false | null | "[" operand, ... "]"

There is no arithmetic, no call and no attribute, so a hyphen may stand in a name, and a condition
always ends. ``extra_info.level`` walks into a column that holds mappings.

As in YAML and JSON, and unlike in Python, true and false are no numbers: ``k == 1`` does not take
true, ``k == true`` does not take 1, and neither of ``true < 1``, ``true < true`` has an order.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]
Term = Callable[[Values], Any]

MAX_LENGTH = 1000
MAX_DEPTH = 32

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>[^\W\d](?:[\w.-]*\w)?)
    | (?P<op>==|!=|<=|>=|<|>)
    | (?P<mark>[()\[\],])
    )""",
    re.VERBOSE,
)
_CONSTANTS: Mapping[str, Any] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}
_WORDS = frozenset({"and", "or", "not", "in"})
_ORDER: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


#: Told wherever a condition cannot be read.
_OPERATORS = "operators: == != < <= > >= in, not in, and, or, not"


class ConditionError(ValueError):
    """A condition that cannot be read, or that compares what has no order."""


@dataclass(frozen=True)
class Condition:
    """A parsed condition; call it with the values of the names it reads.

    Args:
        text: as it was written.
        names: the columns or mounts it reads (of ``extra_info.level``, ``extra_info``).
        booleans: true or false is written in it, which no number is equal to.
    """

    text: str
    names: frozenset[str]
    booleans: bool
    _term: Term = field(repr=False, compare=False)

    def __call__(self, values: Values) -> bool:
        """Whether it holds. An absent value is None: in no order with anything, equal to null.

        Raises:
            ConditionError: text or a boolean is put in order with a number, or ``in`` has no list
                to look in.
        """
        return bool(self._term(values))


def parse_condition(text: str) -> Condition:
    """Read `text`.

    Raises:
        ConditionError: what was expected, and at which character.
    """
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"a condition has at most {MAX_LENGTH} characters, got {len(text)}")
    parser = _Parser(text)
    term = parser.either(0)
    if parser.kind != "end":
        raise parser.expected("'and', 'or' or the end")
    if not parser.names:
        raise ConditionError(f"{text!r} reads no column or mount, so that it is always the same")
    return Condition(text, frozenset(parser.names), parser.booleans, term)


class _Parser:
    """Recursive descent over the tokens of one condition; builds closures."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self.booleans = False
        self.at = self.end = 0
        self.kind = self.token = ""
        self.next()

    def next(self) -> None:
        self.at = self.end
        if not self.text[self.at :].strip():
            self.kind, self.token, self.at = "end", "the end", len(self.text)
            return
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            found = self.text[self.at :].lstrip()
            raise ConditionError(
                f"cannot read {found[:12]!r} at character {len(self.text) - len(found) + 1}"
                + (": write == for equality" if found.startswith("=") else "")
                + f" ({_OPERATORS})"
            )
        self.kind, self.token = match.lastgroup, match[match.lastgroup]
        self.at, self.end = match.start(match.lastgroup), match.end()
        if self.kind == "name" and self.token in _WORDS:
            self.kind = "word"

    def expected(self, what: str) -> ConditionError:
        found = self.token if self.kind == "end" else repr(self.token)
        place = f"at character {self.at + 1}"
        return ConditionError(f"expected {what} {place}, found {found} ({_OPERATORS})")

    def take(self, kind: str, token: str) -> bool:
        if (self.kind, self.token) != (kind, token):
            return False
        self.next()
        return True

    def either(self, depth: int) -> Term:
        terms = [self.both(depth)]
        while self.take("word", "or"):
            terms.append(self.both(depth))
        return terms[0] if len(terms) == 1 else lambda values: any(t(values) for t in terms)

    def both(self, depth: int) -> Term:
        terms = [self.negated(depth)]
        while self.take("word", "and"):
            terms.append(self.negated(depth))
        return terms[0] if len(terms) == 1 else lambda values: all(t(values) for t in terms)

    def negated(self, depth: int) -> Term:
        if depth > MAX_DEPTH:
            raise ConditionError(f"nested deeper than {MAX_DEPTH} levels")
        if self.take("word", "not"):
            term = self.negated(depth + 1)
            return lambda values: not term(values)
        if self.take("mark", "("):
            term = self.either(depth + 1)
            if not self.take("mark", ")"):
                raise self.expected("')'")
            return term
        return self.comparison(depth)

    def comparison(self, depth: int) -> Term:
        left = self.operand(depth)
        if self.kind == "op":
            sign = self.token
            self.next()
            return _compare(sign, left, self.operand(depth))
        if self.take("word", "in"):
            return _contains(left, self.operand(depth))
        if self.take("word", "not"):
            if not self.take("word", "in"):
                raise self.expected("'in'")
            inside = _contains(left, self.operand(depth))
            return lambda values: not inside(values)
        return left

    def operand(self, depth: int) -> Term:
        kind, token = self.kind, self.token
        if kind == "name" and token not in _CONSTANTS:
            self.names.add(token.partition(".")[0])
            self.next()
            return _lookup(token)
        if kind == "mark" and token == "[":
            return self.listed(depth + 1)
        if kind == "name":
            value = _CONSTANTS[token]
            self.booleans |= value is not None
        elif kind == "number":
            value = float(token) if re.search(r"[.eE]", token) else int(token)
        elif kind == "text":
            value = re.sub(r"\\(.)", r"\1", token[1:-1])
        else:
            raise self.expected("a name or a value")
        self.next()
        return lambda values: value

    def listed(self, depth: int) -> Term:
        if depth > MAX_DEPTH:
            raise ConditionError(f"nested deeper than {MAX_DEPTH} levels")
        self.next()
        items: list[Term] = []
        while not self.take("mark", "]"):
            if items and not self.take("mark", ","):
                raise self.expected("',' or ']'")
            items.append(self.operand(depth))
        return lambda values: [item(values) for item in items]


def _lookup(name: str) -> Term:
    root, *parts = name.split(".")

    def look(values: Values) -> Any:
        value = values.get(root)
        for part in parts:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return look


def _is_boolean(value: Any) -> bool:
    # numpy's as well, which is not imported for it; it was called bool_ before numpy 2.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _same(a: Any, b: Any) -> bool:
    """Whether they are equal, where a boolean is no number."""
    if _is_boolean(a) != _is_boolean(b):
        return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    return bool(a == b)


def _compare(sign: str, left: Term, right: Term) -> Term:
    if sign in ("==", "!="):
        equal = sign == "=="
        return lambda values: _same(left(values), right(values)) == equal
    order = _ORDER[sign]

    def compare(values: Values) -> bool:
        a, b = left(values), right(values)
        if a is None or b is None:
            return False
        try:
            if _is_boolean(a) or _is_boolean(b):
                raise TypeError
            return bool(order(a, b))
        except TypeError:
            raise ConditionError(f"{a!r} {sign} {b!r}: these two have no order") from None

    return compare


def _contains(item: Term, container: Term) -> Term:
    def contains(values: Values) -> bool:
        where, what = container(values), item(values)
        if where is None:
            return False
        if isinstance(where, str):
            return isinstance(what, str) and what in where
        if not isinstance(where, list | tuple | set | frozenset | Mapping):
            raise ConditionError(f"'in' needs a list or a text on its right, found {where!r}")
        return any(_same(what, item) for item in where)

    return contains
