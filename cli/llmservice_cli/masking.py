"""Objects without the secrets that people write into environment variables, for what is printed of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmservice_runtime.redact import Redactor


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


def _variables(value: Any) -> Iterator[tuple[str, str]]:
    """Every {name, value} of an object."""
    if isinstance(value, Mapping):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            yield value["name"], value["value"]
        for one in value.values():
            yield from _variables(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _variables(one)
