"""Output of a process: lines of its own log, with credentials masked."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TextIO
from urllib.parse import urlsplit

from llmservice_runtime.contract import Failure

MASK = "***"
# Shorter values are common words rather than credentials.
_SHORTEST = 6
_NAMES = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)(_ID)?$", re.IGNORECASE)


def log(text: str) -> None:
    """Write a line of this process's own log to standard error."""
    sys.stderr.write(f"[llmservice] {text}\n")
    sys.stderr.flush()


class Redactor:
    """The known secrets: values of variables whose names denote secrets, and passwords in URLs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._secrets: set[str] = set()
        for name, value in environment.items():
            if _NAMES.search(name):
                self.hide(value.strip())
            if "://" in value and (password := _password(value)):
                self.hide(password)

    def hide(self, secret: str) -> None:
        """Add a secret; shorter ones than six characters are ignored."""
        if len(secret) >= _SHORTEST:
            self._secrets.add(secret)

    def clean(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    def failure(self, failure: Failure) -> Failure:
        evidence = tuple(map(self.clean, failure.evidence))
        return replace(
            failure, message=self.clean(failure.message), remedy=self.clean(failure.remedy), evidence=evidence
        )


class Redacted:
    """A text stream that masks secrets; replaces sys.stdout and sys.stderr, so tracebacks are covered too."""

    def __init__(self, stream: TextIO, redactor: Redactor) -> None:
        self._stream, self._redactor = stream, redactor

    def write(self, text: str) -> int:
        self._stream.write(self._redactor.clean(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _password(address: str) -> str | None:
    try:
        return urlsplit(address).password
    except ValueError:
        return None
