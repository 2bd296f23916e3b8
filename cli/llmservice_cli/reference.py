"""The page of all commands and the manual page, from what `--help` prints.

`python -m llmservice_cli.reference [--check]` writes docs/reference/cli.md and docs/llmservice.1 below this folder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import app
from .help import Entry, entries

PAGE, MANUAL = Path("docs/reference/cli.md"), Path("docs/llmservice.1")
EXITS = "exit codes"
GENERAL: Mapping[str, str] = {
    "0": "done, or the answer is yes",
    "1": "failed, and the message says what to do; or the answer is no",
    "2": "wrong arguments or input",
    "130": "interrupted",
}
"""Of a command whose help names no others."""


@dataclass(frozen=True)
class Described:
    """One command."""

    name: str
    summary: str
    description: str
    usage: str
    entries: Sequence[Entry]
    epilog: str

    @property
    def exits(self) -> Mapping[str, str]:
        """What each exit code says."""
        return exits_of(self.epilog) or GENERAL

    @property
    def examples(self) -> Sequence[str]:
        """Command lines, with what they do."""
        return [line.strip() for line in block(self.epilog, "examples")]


def block(text: str, title: str) -> Sequence[str]:
    """The indented lines below `title:`, which may have words after it."""
    found = re.search(rf"^{title}\b[^\n]*:\n((?:  .*\n?)+)", text, re.MULTILINE)
    return found[1].rstrip().splitlines() if found else ()


def exits_of(epilog: str) -> Mapping[str, str]:
    """By code; a line without one continues the line before it."""
    found: dict[str, str] = {}
    for line in block(epilog, EXITS):
        row = re.fullmatch(r"  (\d+)\s+(.*)", line)
        if row:
            found[row[1]] = row[2]
        elif found:
            found[[*found][-1]] += f" {line.strip()}"
    return found


def described(name: str) -> Described:
    """One command, from its options."""
    made = app.command(name)
    ctx = made.make_context(f"llmservice {name}", [], resilient_parsing=True)
    usage = made.usage or " ".join(made.collect_usage_pieces(ctx))
    line = app.whole().lines[name]
    listed = entries(made, ctx)
    return Described(
        name, line.short_help or "", made.help or "", f"llmservice {name} {usage}", listed, made.epilog or ""
    )


def page() -> Iterator[str]:
    """Markdown."""
    found = [described(name) for name in app.COMMANDS]
    yield "# Commands of `llmservice`"
    yield ""
    yield "Generated from the commands' own `--help` by `make crds`. [How they are used](../cli.md)."
    yield ""
    yield "| command | what it does | `-o` |"
    yield "|-|-|-|"
    for one in found:
        yield f"| [`{one.name}`](#{one.name}) | {cell(one.summary)} | {cell(outputs(one))} |"
    yield ""
    yield "## Exit codes"
    yield ""
    codes = sorted({code for one in found for code in one.exits}, key=int)
    yield f"| command | {' | '.join(codes)} |"
    yield f"|-|{'-|' * len(codes)}"
    for one in found:
        yield f"| `{one.name}` | {' | '.join(cell(one.exits.get(code, '')) for code in codes)} |"
    for one in found:
        yield from section(one)


def section(one: Described) -> Iterator[str]:
    yield from ("", f"## {one.name}", "", cell(one.description), "", f"`{one.usage}`", "")
    yield from ("| option | | group |", "|-|-|-|")
    for entry in one.entries:
        yield f"| `{cell(entry.names)}` | {cell(entry.text)} | {entry.group} |"
    if one.examples:
        yield from ("", "```text", *one.examples, "```")


def outputs(one: Described) -> str:
    """The forms of the answer; empty: text only."""
    names = next((entry.names for entry in one.entries if "--output <" in entry.names), "")
    return ", ".join(re.findall(r"[a-z]+", names.partition("<")[2]))


def cell(text: str) -> str:
    """As one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def manual() -> Iterator[str]:
    """roff, as man(1) reads it."""
    yield '.TH LLMSERVICE 1 "" "llmservice" "User commands"'
    yield from (".SH NAME", f"llmservice \\- {roff(app.DESCRIPTION)}")
    yield from (".SH SYNOPSIS", ".B llmservice", "COMMAND [OPTIONS]")
    yield ".SH COMMANDS"
    for name in app.COMMANDS:
        one = described(name)
        yield from (f".SS {name}", roff(" ".join(one.description.split())), ".PP", f".B {roff(one.usage)}")
        for entry in one.entries:
            yield from (".TP", f".B {roff(entry.names)}", roff(entry.text))
        if one.examples:
            yield from (".PP", "Examples:", ".nf", *map(roff, one.examples), ".fi")
        yield from (".PP", "Exit codes:")
        for code, says in one.exits.items():
            yield from (".TP", f".B {code}", roff(says))


def roff(text: str) -> str:
    """Without characters that begin a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def generated() -> Mapping[Path, str]:
    return {path: "\n".join(lines) + "\n" for path, lines in ((PAGE, page()), (MANUAL, manual()))}


def main() -> int:
    files = generated()
    if "--check" in sys.argv[1:]:
        stale = [str(path) for path, text in files.items() if not path.exists() or path.read_text() != text]
        print("".join(f"{path} is stale: make crds\n" for path in stale), end="", file=sys.stderr)
        return 1 if stale else 0
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
