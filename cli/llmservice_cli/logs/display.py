"""How lines of a log are printed."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from llmservice_runtime.redact import Redactor

from llmservice_cli.documents import in_a_line, tell
from llmservice_cli.terminal import Row, show

from .arguments import Options
from .lines import SUPERVISOR, Line
from .targets import short

VERSION = 1
_PODS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta")
_LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
_SOURCE = len(SUPERVISOR)


def write(lines: Sequence[Line], redactor: Redactor, options: Options) -> None:
    """On standard output, at once."""
    if options.output == "json":
        for line in lines:
            tell(in_a_line(_document(line, redactor)))
    elif lines:
        show(_row(line, redactor, has_time=options.timestamps) for line in lines)


def _row(line: Line, redactor: Redactor, *, has_time: bool) -> Row:
    pod = short(line.origin.pod)
    return (
        *(((f"{line.time}  ", "dim"),) if has_time else ()),
        (f"{pod} ", _PODS[crc32(line.origin.pod.encode()) % len(_PODS)]),
        (f"{line.source:<{_SOURCE}}  ", "bold" if line.source == SUPERVISOR else "dim"),
        (redactor.clean(line.text), _LEVELS.get(line.level, "")),
    )


def _document(line: Line, redactor: Redactor) -> dict[str, object]:
    return {
        "version": VERSION,
        "time": line.time,
        "pod": line.origin.pod,
        "container": line.origin.container,
        "source": line.source,
        "level": line.level,
        "text": redactor.clean(line.text),
    }
