"""Errors of LLMServices and of unreadable objects.

InvalidSpec: a stored object that this operator cannot act on, with one Problem per field. UnreadableObject: an object
of the cluster without its kind's shape.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from llmservice_api.reasons import Reason

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: field, message and remedy."""

    field: str
    message: str
    remedy: str = ""
    reason: Reason = Reason.INVALID_SPEC
    evidence: str = ""
    """Where the problem was found, if not in the spec."""

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}"
        return f"{text} {self.remedy}" if self.remedy else text


class InvalidSpec(Exception):
    """The operator can act on the object only after its author changes it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


class UnreadableObject(Exception):
    """An object of the API server lacks its kind's shape. The message names it and quotes no content."""


def checked_reader(kind: str, read: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """`read`, raising UnreadableObject for an object that lacks the kind's shape."""

    def readable(obj: Any, /, *rest: P.args, **named: P.kwargs) -> R:
        try:
            return read(obj, *rest, **named)
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise UnreadableObject(f"{kind} {_named(obj)} cannot be read: {type(error).__name__}") from error

    return readable


def _named(obj: object) -> str:
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    parts = (metadata.get(part) for part in ("namespace", "name")) if isinstance(metadata, Mapping) else ()
    return "/".join(part[:253] for part in parts if isinstance(part, str)).encode(errors="replace").decode()
