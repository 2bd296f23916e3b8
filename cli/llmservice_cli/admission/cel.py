"""CEL expressions evaluated on JSON values, with the API server's meaning: RE2 for patterns, quantities, macros."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import add, ge, gt, le, lt, mul, sub
from types import MappingProxyType
from typing import Any

import re2
from llmservice_planner.quantity import amount

# CEL text to an expression tree: the part of the language that rules of the CRD are written in.
#
# `parse` takes one expression and gives nested tuples, each `(kind, ...)`; UnknownSyntax names what is not supported.
# A test parses every rule of the CRD, so a rule that uses more of the language fails there.

Node = tuple[Any, ...]
"""("value", v), ("name", n), ("list", nodes), ("field", node, name), ("index", node, node), ("has", node, name),
("call", name, target or None, nodes), ("all" | "exists" | "map", node, variable, node), ("not" | "minus", node),
("and" | "or", node, node), ("if", node, node, node), ("binary", operator, node, node)."""

_TOKEN = re.compile(
    r"\s*(?:(?P<float>\d+\.\d+(?:e[-+]?\d+)?)|(?P<int>\d+)|(?P<text>'(?:\\.|[^'\\])*')|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]]))"
)
_WORDS = {"true": True, "false": False, "null": None}
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "%"))
"""Binary operators by precedence, the weakest first; those of a level go from left to right."""
_LOGICAL = {"||": "or", "&&": "and"}
_MACROS = ("all", "exists", "map")


class UnknownSyntax(ValueError):
    """Text that is no CEL, or more of it than is supported."""


@lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    parser = _Parser(text)
    tree = parser.choice()
    parser.end()
    return tree


class _Parser:
    """Descends from the weakest operators to single values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.at = 0

    def choice(self) -> Node:
        node = self.binary()
        if not self.take("?"):
            return node
        yes = self.binary()
        self.need(":")
        return ("if", node, yes, self.choice())

    def binary(self, level: int = 0) -> Node:
        if level == len(_LEVELS):
            return self.single()
        node = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            word = self.next()
            other = self.binary(level + 1)
            node = (_LOGICAL[word], node, other) if word in _LOGICAL else ("binary", word, node, other)
        return node

    def single(self) -> Node:
        if self.take("!"):
            return ("not", self.single())
        if self.take("-"):
            return ("minus", self.single())
        return self.member()

    def member(self) -> Node:
        node = self.primary()
        while True:
            if self.take("."):
                name = self.next()
                node = self.method(node, name) if self.take("(") else ("field", node, name)
            elif self.take("["):
                node = ("index", node, self.choice())
                self.need("]")
            else:
                return node

    def method(self, target: Node, name: str) -> Node:
        arguments = self.items(")")
        if name not in _MACROS:
            return ("call", name, target, arguments)
        variable, condition = arguments
        return (name, target, variable[1], condition)

    def primary(self) -> Node:
        kind, word = self.tokens[self.at] if self.at < len(self.tokens) else ("", "its end")
        self.at += 1
        match kind:
            case "int":
                return ("value", int(word))
            case "float":
                return ("value", float(word))
            case "text":
                return ("value", ast.literal_eval(word))
            case "name" if word in _WORDS:
                return ("value", _WORDS[word])
            case "name":
                return self.function(word) if self.take("(") else ("name", word)
        if word == "(":
            node = self.choice()
            self.need(")")
            return node
        if word == "[":
            return ("list", self.items("]"))
        raise UnknownSyntax(f"{word} is not expected in {self.text}")

    def function(self, name: str) -> Node:
        arguments = self.items(")")
        if name != "has":
            return ("call", name, None, arguments)
        _, node, field = arguments[0]
        return ("has", node, field)

    def items(self, closing: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self.take(closing):
            if found:
                self.need(",")
            found.append(self.choice())
        return tuple(found)

    def peek(self) -> str | None:
        return self.tokens[self.at][1] if self.at < len(self.tokens) and self.tokens[self.at][0] != "text" else None

    def next(self) -> str:
        word = self.peek()
        if word is None:
            raise UnknownSyntax(f"{self.text} ends too early")
        self.at += 1
        return word

    def take(self, word: str) -> bool:
        if self.peek() != word:
            return False
        self.at += 1
        return True

    def need(self, word: str) -> None:
        if not self.take(word):
            raise UnknownSyntax(f"{word} is missing in {self.text}")

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise UnknownSyntax(f"{self.tokens[self.at][1]} is not expected in {self.text}")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            raise UnknownSyntax(f"{text[at:]!r} is not understood in {text}")
        found.append((token.lastgroup or "", token[0].strip()))
        at = token.end()
    return found


Variables = Mapping[str, Any]

_TYPES = MappingProxyType({"bool": bool, "int": int, "double": float, "string": str})


class Failed(Exception):
    """An expression without a value here: a field that is not there, types that do not go together."""


def evaluate(text: str, variables: Variables) -> Any:
    """The value of an expression; Failed where it has none."""
    return _value(parse(text), variables)


def _value(node: Node, names: Variables) -> Any:
    return _KINDS[node[0]](node, names)


def _name(node: Node, names: Variables) -> Any:
    name = node[1]
    if name in names:
        return names[name]
    if name in _TYPES:
        return _TYPES[name]
    raise Failed(f"{name} is not known")


def _field(node: Node, names: Variables) -> Any:
    place = _value(node[1], names)
    if not isinstance(place, Mapping) or node[2] not in place:
        raise Failed(f"{node[2]} is not there")
    return place[node[2]]


def _has(node: Node, names: Variables) -> bool:
    place = _value(node[1], names)
    if not isinstance(place, Mapping):
        raise Failed(f"{node[2]} is asked of no object")
    return node[2] in place


def _index(node: Node, names: Variables) -> Any:
    place, key = _value(node[1], names), _value(node[2], names)
    try:
        return place[key]
    except (LookupError, TypeError):
        raise Failed(f"{key!r} is not there") from None


def _has_side(node: Node, names: Variables, value: bool) -> bool:
    """Whether a side of `&&` or `||` has this value. If so, a failure of the other side does not count, as in CEL."""
    try:
        if _value(node[1], names) is value:
            return True
    except Failed:
        if _value(node[2], names) is value:
            return True
        raise
    return _value(node[2], names) is value


def _if(node: Node, names: Variables) -> Any:
    return _value(node[2] if _value(node[1], names) else node[3], names)


def _has_item(node: Node, names: Variables, value: bool) -> bool:
    """Whether the condition of `all` or `exists` has this value for an item; if so, failures of others do not count."""
    failed: Failed | None = None
    for one in _value(node[1], names):
        try:
            if bool(_value(node[3], {**names, node[2]: one})) is value:
                return True
        except Failed as failure:
            failed = failure
    if failed is not None:
        raise failed
    return False


def _each(node: Node, names: Variables) -> Sequence[Any]:
    return [_value(node[3], {**names, node[2]: one}) for one in _value(node[1], names)]


def _is_equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _binary(node: Node, names: Variables) -> Any:
    one, other = _value(node[2], names), _value(node[3], names)
    try:
        return _OPERATORS[node[1]](one, other)
    except (TypeError, ArithmeticError) as error:
        raise Failed(str(error)) from None


def _call(node: Node, names: Variables) -> Any:
    _, name, target, arguments = node
    values = [_value(one, names) for one in arguments]
    if target is not None:
        values.insert(0, _value(target, names))
    try:
        return _FUNCTIONS[name](*values)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise Failed(f"{name}: {error}") from None


@lru_cache(maxsize=1024)
def pattern(text: str) -> Any:
    """A compiled pattern of RE2, which Go's regexp is as well."""
    return re2.compile(text)


def is_match(text: str, expression: str) -> bool:
    """Whether the pattern matches anywhere."""
    return pattern(expression).search(text) is not None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _remainder(one: int, other: int) -> int:
    """With the sign of the dividend, as Go has it."""
    return int(math.fmod(one, other))


def _substring(text: str, begin: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= begin <= end <= len(text):
        raise ValueError("out of range")
    return text[begin:end]


def _compare(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "==": _is_equal,
        "!=": lambda one, other: not _is_equal(one, other),
        "<": lt,
        "<=": le,
        ">": gt,
        ">=": ge,
        "in": lambda one, other: one in other,
        "+": add,
        "-": sub,
        "*": mul,
        "%": _remainder,
    }
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "size": len,
        "sum": sum,
        "type": type,
        "int": int,
        "string": _text,
        "quantity": amount,
        "compareTo": _compare,
        "matches": is_match,
        "contains": lambda text, part: part in text,
        "startsWith": str.startswith,
        "split": str.split,
        "replace": str.replace,
        "substring": _substring,
    }
)
_KINDS: Mapping[str, Callable[[Node, Variables], Any]] = MappingProxyType(
    {
        "value": lambda node, _: node[1],
        "name": _name,
        "list": lambda node, names: [_value(one, names) for one in node[1]],
        "field": _field,
        "has": _has,
        "index": _index,
        "and": lambda node, names: not _has_side(node, names, False),
        "or": lambda node, names: _has_side(node, names, True),
        "if": _if,
        "all": lambda node, names: not _has_item(node, names, False),
        "exists": lambda node, names: _has_item(node, names, True),
        "map": _each,
        "not": lambda node, names: not _value(node[1], names),
        "minus": lambda node, names: -_value(node[1], names),
        "binary": _binary,
        "call": _call,
    }
)
