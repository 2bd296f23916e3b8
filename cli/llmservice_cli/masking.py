"""Objects without the secrets that people write into environment variables, for what is printed of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmservice_api.errors import Problem
from llmservice_runtime.redact import Redactor

_COLLECTIONS = (Mapping, list, tuple)
_QUOTED = 78
"""Characters of a longer value that a message about it has at least (admission/structural.py)."""


def redactor_of(*objects: Any) -> Redactor:
    """Hides the values of variables with names such as HF_TOKEN, and passwords in addresses, of all these objects."""
    # Two objects may give one variable two values.
    return Redactor({f"{index}_{name}": value for index, (name, value) in enumerate(_variables(objects))})


def masked(value: Any, redactor: Redactor) -> Any:
    """The same value with every text cleaned."""
    if isinstance(value, Mapping):
        return {key: masked(one, redactor) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, redactor) for one in value]
    return redactor.clean(value) if isinstance(value, str) else value


def without_secrets(problem: Problem, redactor: Redactor) -> Problem:
    """The same problem with every text cleaned."""
    field, message, remedy = map(redactor.clean, (problem.field, problem.message, problem.remedy))
    return replace(problem, field=field, message=message, remedy=remedy)


def _variables(objects: Any) -> Iterator[tuple[str, str]]:
    """The value of every {name, value}, also of a wrong type, and as much of it as a message quotes."""
    for one in _within(objects):
        if isinstance(one, Mapping) and isinstance(one.get("name"), str):
            for value in _within(one.get("value")):
                if not isinstance(value, _COLLECTIONS) and value is not None:
                    yield one["name"], str(value)
                    yield one["name"], str(value)[:_QUOTED]


def _within(value: Any) -> Iterator[Any]:
    """A value and all that it holds; what the aliases of a file repeat comes once."""
    seen: set[int] = set()
    left = [value]
    while left:
        one = left.pop()
        yield one
        if isinstance(one, _COLLECTIONS) and id(one) not in seen:
            seen.add(id(one))
            left += one.values() if isinstance(one, Mapping) else one
