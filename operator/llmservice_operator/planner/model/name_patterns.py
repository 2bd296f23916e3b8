"""Patterns for names of modules that a repository brings along: regular expressions and globs, matched by RE2.

A repository is not trusted, and Python's `re` can take time that doubles with each character of a pattern. RE2 takes
time in proportion to the pattern and the name. It has no look-ahead, look-behind or back-references; a pattern with one
is refused, not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

LONGEST = 1024
"""Characters of a pattern, or of a name in a list of modules."""
MEMORY = 2**20
"""Bytes for the program of one pattern and its states, which bounds the time to compile it too: some 5 ms."""
_SPECIAL = re.compile(r"(\*|\?|\[!?\]?[^\]]*\])")
"""What is special in a glob."""
_GLOB: Mapping[str, str] = {"*": ".*", "?": "."}


class UnreadablePattern(ValueError):
    """RE2 does not take the pattern; the text says why."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. Called with a name: whether that begins with a match."""

    compiled: Any
    parts: tuple[str, ...]
    """Texts that every match has."""

    def __call__(self, name: str) -> bool:
        return self.is_possible(name) and self.compiled.match(name) is not None

    def is_possible(self, text: str) -> bool:
        """Whether the text has what a match must have."""
        return all(part in text for part in self.parts)

    @property
    def size(self) -> int:
        """Of the program, in instructions."""
        return int(self.compiled.programsize)


def regular_expression(text: str) -> Pattern:
    """Of names that begin with a match, as `re.match` has it (compressed-tensors)."""
    return Pattern(_compiled(text), _literals(text))


def glob(text: str) -> Pattern:
    """Of names that begin with a match of a glob (ModelOpt)."""
    parts = _SPECIAL.split(text)
    compiled = _compiled("(?s)" + "".join(_GLOB.get(part) or _plain(part) for part in parts))
    return Pattern(compiled, tuple(filter(None, parts[::2])))


def _compiled(text: str) -> Any:
    import re2  # only a config with patterns needs it: the command line starts without

    if len(text) > LONGEST or not text.isascii():
        raise UnreadablePattern(f"it has more than {LONGEST} characters, or some that no name of a module has")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MEMORY, False, True
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise UnreadablePattern(_why(error)) from None


_TOKEN = re.compile(
    r"(?P<one>[A-Za-z0-9_-]|\\[^A-Za-z0-9])(?![*?{])"
    r"|\\[dwsDWS]|\[[A-Za-z0-9_.^-]+\]|[\w.^$*+?-]|\\[^A-Za-z0-9]|\{[0-9,]*\}"
)
"""One character that is meant as it is; or what may be any or no character, and how often."""


def _literals(text: str) -> tuple[str, ...]:
    """Texts that each match of a regular expression has; none where it has groups, classes or alternatives."""
    found, place = [""], 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return ()
        if token["one"]:
            found[-1] += token["one"][-1]
        elif found[-1]:
            found.append("")
        place = token.end()
    return tuple(filter(None, found))


def _plain(part: str) -> str:
    """A class as the standard library writes it, in `(?s:CLASS)\\Z`; anything else is meant as it is."""
    return translate(part)[4:-3] if _SPECIAL.fullmatch(part) else re.escape(part)


def _why(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
