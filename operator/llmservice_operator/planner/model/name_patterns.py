"""Patterns for names of modules that a repository brings along: regular expressions and globs, matched by RE2.

A repository is not trusted, and Python's `re` can take time that doubles with each character of a pattern. RE2 takes
time in proportion to the pattern and the name. It has no look-ahead, look-behind or back-references; a pattern with one
is refused, not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import translate

LONGEST = 1024
"""Characters of a pattern, or of a name in a list of modules."""
MEMORY = 2**20
"""Bytes for the program of one pattern and its states, which bounds the time to compile it too: some 5 ms."""
_SPECIAL = re.compile(r"(\*|\?|\[!?\]?[^\]]*\])")
"""What is special in a glob."""
_GLOB: Mapping[str, str] = {"*": ".*", "?": "."}


class UnreadablePattern(ValueError):
    """RE2 does not take the pattern; the text says why."""


def regular_expression(text: str) -> Callable[[str], bool]:
    """Whether a name begins with a match, as `re.match` has it (compressed-tensors)."""
    import re2  # only a config with patterns needs it: the command line starts without

    if len(text) > LONGEST or not text.isascii():
        raise UnreadablePattern(f"it has more than {LONGEST} characters, or some that no name of a module has")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MEMORY, False, True
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        raise UnreadablePattern(_why(error)) from None
    return lambda name: compiled.match(name) is not None


def glob(text: str) -> Callable[[str], bool]:
    """Whether a name begins with a match of a glob (ModelOpt)."""
    parts = _SPECIAL.split(text)
    return regular_expression("(?s)" + "".join(_GLOB.get(part) or _plain(part) for part in parts))


def _plain(part: str) -> str:
    """A class as the standard library writes it, in `(?s:CLASS)\\Z`; anything else is meant as it is."""
    return translate(part)[4:-3] if _SPECIAL.fullmatch(part) else re.escape(part)


def _why(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
