"""Values of the options of `llmservice bench`: parsers for typer."""

from __future__ import annotations

from typer import BadParameter

from llmservice_cli.numbers import shown


def share(text: str) -> float:
    """A percentage from 0 to 100, with or without its sign, as a number from 0 to 1."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise BadParameter(f"must be a percentage such as 5%, not {shown(text)}")
    return percent / 100
