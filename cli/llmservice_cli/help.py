"""What `--help` prints: usage, what the command does, arguments and options by group, examples, exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from .terminal import Row, rendered, width

WIDEST = 120
LEFT = 30
"""Columns of a name; a longer one has a line of its own."""
NARROW = 60
"""Columns of a terminal below which every name has."""
HELP = {"--help", "-h"}
ARGUMENTS, OPTIONS = "arguments", "options"


class Entry(NamedTuple):
    """A parameter, or a command, and its line."""

    group: str
    names: str
    text: str


OWN_HELP = Entry(OPTIONS, "-h, --help", "show this message and exit")


class Command(click.Command):
    """A command with this help. `group` is its heading in the help of all; `usage` is given where that of the
    parameters says too little."""

    def __init__(self, name: str, *, group: str = OPTIONS, usage: str = "", **settings: Any) -> None:
        super().__init__(name, **settings)
        self.group, self.usage = group, usage

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """--help counts beside whatever else is wrong."""
        if asks_for_help(args, self.get_params(ctx)) and not ctx.resilient_parsing:
            print(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        usage = [ctx.command_path, *([self.usage] if self.usage else self.collect_usage_pieces(ctx))]
        formatter.write(rendered(page(usage, self.help or "", entries(self, ctx), self.epilog or "")))


class Group(click.Group):
    """The command with the others under it, which are listed by their groups."""

    lines: Mapping[str, Command] = MappingProxyType({})
    """The commands by name, of which only the line in this help is known."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if (not args or args[0] in HELP) and not ctx.resilient_parsing:
            print(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = [Entry(line.group, name, line.short_help or "") for name, line in self.lines.items()]
        usage = [ctx.command_path, *self.collect_usage_pieces(ctx)]
        formatter.write(
            rendered(page(usage, self.help or "", [*listed, *entries(self, ctx), OWN_HELP], self.epilog or ""))
        )


def asks_for_help(args: Sequence[str], params: Iterable[click.Parameter]) -> bool:
    """Whether --help is one of the words, and neither the value of an option nor behind `--`."""
    valued = {name for param in params if not getattr(param, "is_flag", True) for name in param.opts}
    before = ""
    for word in args:
        if word == "--":
            return False
        if word in HELP and before not in valued:
            return True
        before = word
    return False


def entries(command: click.Command, ctx: click.Context) -> Sequence[Entry]:
    """Every parameter in its order; arguments come first."""
    found = []
    for param in command.get_params(ctx):
        names, text = param.get_help_record(ctx) or ("", "")
        group = getattr(param, "group", None) or (ARGUMENTS if isinstance(param, click.Argument) else OPTIONS)
        found.append(OWN_HELP if param is command.get_help_option(ctx) else Entry(group, names, text))
    return sorted(found, key=lambda entry: entry.group != ARGUMENTS)


def page(usage: Sequence[str], text: str, listed: Iterable[Entry], epilog: str) -> Iterator[Row]:
    """All of it."""
    columns = min(width(), WIDEST)
    yield ("usage: ", "bold"), (" ".join(usage), "")
    yield ()
    for paragraph in text.strip().split("\n\n"):
        yield from (((line, ""),) for line in wrap(" ".join(paragraph.split()), columns))
        yield ()
    for group, rows in grouped(listed).items():
        yield ((f"{group}:", "bold"),)
        for names, what in rows:
            yield from two_columns(names, what, columns)
        yield ()
    for line in epilog.strip().splitlines():
        yield ((line, "bold" if line.endswith(":") and not line.startswith(" ") else ""),)


def grouped(listed: Iterable[Entry]) -> Mapping[str, list[tuple[str, str]]]:
    """In the order of their first entries; what has no group of its own comes last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for entry in listed:
        groups.setdefault(entry.group, []).append((entry.names, entry.text))
    if OPTIONS in groups:
        groups[OPTIONS] = groups.pop(OPTIONS)
    return groups


def two_columns(names: str, what: str, columns: int) -> Iterator[Row]:
    """A name and its text, indented; the text goes on under itself."""
    left = indent(columns)
    lines = wrap(what, columns - left, break_long_words=False) or [""]
    if len(names) > left - 4:
        yield ((f"  {names}", "cyan"),)
    else:
        first, *lines = lines
        yield (f"  {names:<{left - 4}}", "cyan"), (f"  {first}", "")
    yield from (((f"{'':<{left}}{line}", ""),) for line in lines)


def indent(columns: int) -> int:
    """Columns before the text of a name."""
    return LEFT + 2 if columns >= NARROW else 6
