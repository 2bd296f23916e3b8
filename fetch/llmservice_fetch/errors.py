"""The two errors of origins, common to all client libraries, and functions that remove secrets from texts."""

from __future__ import annotations

import re
import urllib.parse

_ADDRESS = re.compile(r"\w+://[^\s()<>'\"]+")
_WORDS_LIMIT = 300
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Unreachable(Exception):
    """No response, or an incomplete one. May be retried."""


class HTTPStatusError(Exception):
    """An error status. `code` and `text` are the server's; `wait` is its Retry-After in seconds."""

    def __init__(self, status: int, url: str, *, code: str = "", text: str = "", wait: float = 0.0) -> None:
        super().__init__(f"{plain(url)} answered {status}" + (f": {text}" if text else ""))
        self.status, self.code, self.text, self.wait = status, code, text, wait

    @property
    def is_transient(self) -> bool:
        """Whether a retry may succeed."""
        return self.status in _PASSING


def plain(url: str) -> str:
    """A URL without query (which may hold a signature) and user info; empty where it is not a URL."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return ""
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def words(error: Exception) -> str:
    """A library's error message: one line, with plain URLs."""
    text = " ".join(_ADDRESS.sub(lambda found: plain(found[0]), str(error)).split())
    return text[:_WORDS_LIMIT] or type(error).__name__
