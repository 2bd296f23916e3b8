"""Options and arguments: how a field of a command's Options is written on the command line, and read.

`Annotated[type, Option(...)]` or `Annotated[type, Argument(...)]` is the field's type: text, a number, a path, one of
some words, a list of these, or `Any` with a parser of the text. A field without a default has to be given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import click
from click.shell_completion import CompletionItem

Names = Callable[[click.Context, click.Parameter, str], list[str]]
"""What a shell completes a word with, of which the last argument is typed already."""


class Argument:
    """A word by its place, or all that follow of a list."""

    def __init__(self, *, metavar: str, help: str, complete: Names | None = None) -> None:  # noqa: A002
        self.settings: dict[str, Any] = {"metavar": metavar, "help": help, "shell_complete": complete}


class Option:
    """A word after one of `names`, which is the field's without any, or of a bool the name alone. `metavar` may be left
    out of a bool and of words to choose from; `parser` makes the value of the text, or raises BadParameter."""

    def __init__(
        self,
        *names: str,
        help: str,  # noqa: A002
        metavar: str | None = None,
        group: str | None = None,
        parser: Callable[[str], Any] | None = None,
        show_default: bool = True,
    ) -> None:
        self.names, self.group, self.parser = names, group, parser
        self.settings: dict[str, Any] = {"metavar": metavar, "help": help, "show_default": show_default}


def parameter(field: dataclasses.Field[Any], annotation: Any) -> click.Parameter:
    """click's parameter for a field; `annotation` is its type."""
    kind, declared = get_args(annotation)
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    is_required = field.default is dataclasses.MISSING
    settings = dict(declared.settings) if is_required else {**declared.settings, "default": field.default}
    is_list = get_origin(kind) is list
    if is_list:
        kind = get_args(kind)[0]
        settings["callback"] = _list_or_none
    if isinstance(declared, Argument):
        settings["help"] += "  [required]" if is_required else ""
        return _Argument([field.name], type=_Type(kind), nargs=-1 if is_list else 1, required=is_required, **settings)
    settings |= {"is_flag": True} if kind is bool else {"type": _Type(kind, declared.parser), "multiple": is_list}
    names = declared.names or (f"--{field.name.replace('_', '-')}",)
    found = _Option([*names, field.name], required=is_required, **settings)
    found.group = declared.group
    return found


def _list_or_none(_: click.Context, __: click.Parameter, values: Sequence[Any]) -> list[Any] | None:
    return list(values) or None


class _Option(click.Option):
    group: str | None = None
    """Its heading in the help of its command."""


class _Argument(click.Argument):
    def make_metavar(self, ctx: click.Context) -> str:
        return self.human_readable_name

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        word = f"{{{self.metavar}}}" if self.required else f"[{self.metavar}]"
        return [word if self.nargs == 1 else f"{word}..."]


class _Type(click.ParamType[Any]):
    """What is made of a text."""

    name = "value"

    def __init__(self, kind: Any, parser: Callable[[str], Any] | None = None) -> None:
        self.kind, self.parser = kind, parser
        self.choices: Sequence[str] = get_args(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            self.choices = [one.value for one in kind]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.parser is not None:
            return self.parser(value)
        if self.choices and value not in self.choices:
            raise click.BadParameter(f"{value!r} is not one of {', '.join(map(repr, self.choices))}")
        if self.kind is Any or not isinstance(self.kind, type):
            return value
        try:
            return self.kind(value)
        except ValueError:
            number = "an integer" if self.kind is int else "a number"
            raise click.BadParameter(f"must be {number}, not {value!r}") from None

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return f"<{'|'.join(self.choices)}>" if self.choices else None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self.kind is Path:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in self.choices if word.startswith(incomplete)]
