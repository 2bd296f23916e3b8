"""The API key of requests: where a text has it, and what can be one."""

from __future__ import annotations

import os

from llmservice_cli.errors import CliError

LONGEST = 4096
"""Characters of a key."""


def key_in(text: str) -> str:
    """The first line that is not empty: a Secret may hold several keys, one a line. Empty where a header cannot hold
    it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if line.isascii() and line.isprintable() and len(line) <= LONGEST else ""


def key_of(variable: str | None) -> str:
    """The key in an environment variable, empty where none is named; CliError where there is none in it."""
    if variable is None:
        return ""
    text = os.environ.get(variable, "")
    if key := key_in(text):
        return key
    raise CliError(
        f"the environment variable {variable} has no key that can be sent: a key is at most {LONGEST} characters of "
        "printable ASCII"
        if text.strip()
        else f"the environment variable {variable} is empty or not set",
        f"export {variable}=KEY",
    )
