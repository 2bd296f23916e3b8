"""What is wrong with an LLMService, in words for the person who wrote it.

InvalidSpec        a stored object that this operator cannot act on; carries one Problem a field
UnreadableObject   an object of the cluster that is not what its kind says
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from llmservice_operator.api.reasons import Reason

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and what to do about it."""

    field: str
    message: str
    remedy: str = ""
    reason: Reason = Reason.INVALID_SPEC
    evidence: str = ""
    """What it was told by, where that is not the spec itself."""

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}"
        return f"{text} {self.remedy}" if self.remedy else text


class InvalidSpec(Exception):
    """The object cannot be acted on until its author changes it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


class UnreadableObject(Exception):
    """An object of the API server is not what its kind says; names it, with little of what it holds."""


def refusing(kind: str, read: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A reader of objects of a kind, where anything else than that kind's shape is UnreadableObject."""

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
