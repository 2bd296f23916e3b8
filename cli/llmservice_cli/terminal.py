"""Lines on standard output: with colours on a terminal that wants them, else plain."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from shutil import get_terminal_size
from typing import TextIO

from llmservice_runtime.bounded_json import clean

Span = tuple[str, str]
"""Text and style."""
Row = tuple[Span, ...]


def width() -> int:
    """Columns; a pipe has what COLUMNS says, or 80."""
    return get_terminal_size((80, 24)).columns


def is_styled(stream: TextIO | None = None) -> bool:
    """Whether colours are shown, by default on standard output: on a terminal, without NO_COLOR
    (https://no-color.org) and not a dumb one."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and (stream or sys.stdout).isatty()


def show(rows: Iterable[Row]) -> None:
    print(rendered(rows))


def rendered(rows: Iterable[Row]) -> str:
    """Lines of text, with colours where they are shown."""
    if not is_styled():
        return "\n".join(plain(row) for row in rows)
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for row in rows:
            console.print(Text.assemble(*((clean(text), style) for text, style in row)), soft_wrap=True)
    return captured.get().removesuffix("\n")


def plain(row: Row) -> str:
    return clean("".join(text for text, _ in row)).rstrip()
