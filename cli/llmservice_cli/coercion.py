"""Values of options without pydantic, by which typer reads them: its import takes as long as a plan.

Text, numbers, paths, one of some words, a list of these, or what a parser makes of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer import BadParameter
from typer._coercion import RuntimeParam


@dataclass(frozen=True)
class Typed(RuntimeParam):
    """What one option makes of what was typed."""

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        parser = self.parameter_info.parser
        whole: Any = self.annotation
        is_list = get_origin(whole) is list
        kind = get_args(whole)[0] if is_list else whole
        try:
            if parser is not None:
                return parser(value) if isinstance(value, str) else value
            return [_read(kind, one) for one in value] if is_list else _read(kind, value)
        except BadParameter as refused:
            raise BadParameter(refused.message, ctx=ctx, param=param) from None


def _read(kind: Any, value: Any) -> Any:
    if kind in (str, bool, Any) or kind is type(value):
        return value
    if get_origin(kind) is Literal or issubclass(kind, Enum):
        choices = get_args(kind) or tuple(one.value for one in kind)
        if value not in choices:
            raise BadParameter(f"{value!r} is not one of {', '.join(map(repr, choices))}")
        return value if get_args(kind) else kind(value)
    if kind is Path:
        return Path(value)
    try:
        return kind(value)
    except ValueError:
        raise BadParameter(f"must be {'an integer' if kind is int else 'a number'}, not {value!r}") from None
