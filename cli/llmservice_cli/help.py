"""What `--help` prints: usage, what the command does, arguments and options by group, examples, exit codes.

typer's own help imports rich's Markdown and tracebacks, which takes longer than everything else here together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from types import MappingProxyType
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup

from .coercion import Typed
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


class Command(TyperCommand):
    """A command with this help."""

    usage: str = ""
    """Where that of the parameters says too little."""

    def get_params(self, ctx: Any) -> list[Any]:
        return typed(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """--help before anything else: reading its value would import pydantic, half of the time that it takes."""
        if asks_for_help(args, self.get_params(ctx)) and not ctx.resilient_parsing:
            print(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        usage = [ctx.command_path, *([self.usage] if self.usage else self.collect_usage_pieces(ctx))]
        formatter.write(rendered(page(usage, self.help or "", entries(self, ctx), self.epilog or "")))


class Group(TyperGroup):
    """The command with the others under it, which are listed by their `rich_help_panel`. Its own --help is no
    option of typer's, for the same reason."""

    lines: Mapping[str, Command] = MappingProxyType({})
    """The commands by name, of which only the line in this help is known."""

    def get_params(self, ctx: Any) -> list[Any]:
        return typed(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if (not args or args[0] in HELP) and not ctx.resilient_parsing:
            print(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lines = self.lines.items()
        listed = [Entry(line.rich_help_panel or OPTIONS, name, line.short_help or "") for name, line in lines]
        usage = [ctx.command_path, *self.collect_usage_pieces(ctx)]
        formatter.write(
            rendered(page(usage, self.help or "", [*listed, *entries(self, ctx), OWN_HELP], self.epilog or ""))
        )


def asks_for_help(args: Sequence[str], params: Iterable[Any]) -> bool:
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


def typed(params: list[Any]) -> list[Any]:
    """The same parameters, which read their values without pydantic."""
    for param in params:
        param._runtime_param = Typed(param.type_descriptor.parameter_info, param.type_descriptor.annotation)
    return params


def entries(command: Any, ctx: Any) -> Sequence[Entry]:
    """Every parameter that is not hidden, in its order; arguments come first."""
    found = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None or getattr(param, "hidden", False):
            continue
        is_argument = param.param_type_name == "argument"
        group = getattr(param, "rich_help_panel", None) or (ARGUMENTS if is_argument else OPTIONS)
        names = param.metavar if is_argument else record[0]
        found.append(OWN_HELP if param.name == "help" else Entry(group, names, record[1]))
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
