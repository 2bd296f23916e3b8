"""CEL text to an expression tree: the part of the language that rules of the CRD are written in.

`parse` takes one expression and gives nested tuples, each `(kind, ...)`; UnknownSyntax names what is not supported. A
test parses every rule of the CRD, so a rule that uses more of the language fails there.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Any

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
