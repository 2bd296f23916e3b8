"""Where a text shows secrets: after names of secrets. Pure.

A text is gone through once from left to right, and no pattern goes back over what it has read: whoever writes lines
into a log decides how long they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from .secret_names import is_header, is_secret_key

_NAME = re.compile(
    r"(?<![\w.-])(?P<dashes>--)?(?P<name>[\w.-]++)(?P<end>\\{0,8}['\"]?)"
    r"(?:[ \t]{0,4}(?:=>|[=:])[ \t]{0,4}"
    r"|(?P<list>,[ \t]{0,4}(?=b?\\{0,8}['\"]))"
    r"|(?P<space>(?(dashes)[ \t]{1,4}(?=[^\s-]|-[^\s-])|(?!))))"
)
"""A name and what separates it from its value; a space does after an option, a comma between two quoted words."""
_OPENED = re.compile(r"(?:\w{1,16}\()?[bfru]?(?P<escape>\\{0,8})(?P<quote>['\"])", re.IGNORECASE)
_QUOTED = {quote: re.compile(rf"(?:\\.|[^\\\n{quote}])*+") for quote in "'\""}
_ITEMS = re.compile(r"[\[(](?:'(?:\\.|[^'\\\n])*+'|\"(?:\\.|[^\"\\\n])*+\"|['\"][^\n]*+|[^\])\n'\"]++)*+")
_MAPPING = re.compile(r"\{[ \t]{0,4}(?:\\{0,8}['\"]|\}|$)", re.MULTILINE)
_LINE = {quote: re.compile(rf"[^\n{quote}]*+") for quote in ("", "'", '"')}
_WORD = {"": re.compile(r"\S*+"), **{quote: re.compile(rf"(?:\\\S|[^\s\\{quote}])*+") for quote in "'\""}}


def places(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each value after a name of a secret, in their order."""
    done = 0
    for hit in _NAME.finditer(text):
        if hit.start() < done or not _is_secret(hit):
            continue
        start, done = _value(text, hit)
        if start < done:
            yield start, done


def _is_secret(hit: re.Match[str]) -> bool:
    is_word_of_list = hit["list"] is not None and not hit["end"]
    return not is_word_of_list and is_secret_key(hit["name"])


def _value(text: str, hit: re.Match[str]) -> tuple[int, int]:
    """To the closing quote or bracket; without one to the next space, and of headers to the end of the line."""
    at = hit.end()
    if opened := _OPENED.match(text, at):
        start = opened.end()
        if hit["list"] is not None and text.startswith("--", start):
            return at, at
        if opened["escape"]:
            return start, _end(_escaped(opened["escape"] + opened["quote"]), text, start)
        return start, _end(_QUOTED[opened["quote"]], text, start)
    if text.startswith(("[", "("), at):
        return at + 1, _end(_ITEMS, text, at)
    if _MAPPING.match(text, at):
        return at, at
    before = text[hit.start() - 1 : hit.start()]
    around = before if before in ("'", '"') and not hit["end"] else ""
    return at, _end((_LINE if is_header(hit["name"]) else _WORD)[around], text, at)


@lru_cache(maxsize=16)
def _escaped(closing: str) -> re.Pattern[str]:
    """What stands before this quote with the backslashes before it."""
    return re.compile(rf"(?:(?!{re.escape(closing)})[^\n])*+")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what the pattern takes from here on ends."""
    found = pattern.match(text, at)
    return found.end() if found else at
