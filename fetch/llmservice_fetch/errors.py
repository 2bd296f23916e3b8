"""What a place that files come from answers with when it gives none: two kinds of error, for every library."""

from __future__ import annotations

import re
import urllib.parse

_ADDRESS = re.compile(r"\w+://[^\s()<>'\"]+")
_WORDS_LIMIT = 300
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Unreachable(Exception):
    """No answer, or half of one. Worth another try."""


class Refused(Exception):
    """An answer that is no success. `code` and `text` are the server's own words; `wait` is its Retry-After."""

    def __init__(self, status: int, url: str, *, code: str = "", text: str = "", wait: float = 0.0) -> None:
        super().__init__(f"{plain(url)} answered {status}" + (f": {text}" if text else ""))
        self.status, self.code, self.text, self.wait = status, code, text, wait

    @property
    def passes(self) -> bool:
        """Whether the same request may do better in a moment."""
        return self.status in _PASSING


def plain(url: str) -> str:
    """An address without its query, which may be a signature, and without a password; nothing of what is no address."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return ""
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def words(error: Exception) -> str:
    """What a library says of its error: one line, with no address's query."""
    said = " ".join(_ADDRESS.sub(lambda found: plain(found[0]), str(error)).split())
    return said[:_WORDS_LIMIT] or type(error).__name__
