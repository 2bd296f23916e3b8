"""What every API model has in common, and the small vocabulary that its fields are written in."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic.alias_generators import to_camel

Json = dict[str, Any]
"""A Kubernetes-shaped leaf: its schema is Kubernetes' own, its value is handed on as it is."""

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
"""A list. JSON has no tuples, so strictness stops at the container and goes on at its items."""

SET = {"x-kubernetes-list-type": "set"}
"""Server-side apply merges such a list by its items; other lists have one owner."""

BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Server-side apply merges such a list by the names of its items, which must differ."""


class ApiModel(BaseModel):
    """A part of the spec: immutable, camelCase in JSON, strict about types as the API server is."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """The API server drops `field: null`; so do we, for objects that did not pass through it."""
        if isinstance(value, Mapping):
            return {key: item for key, item in value.items() if item is not None}
        return value


@dataclass(frozen=True, slots=True)
class Knob:
    """How vLLM is told of a field, and what holds while the field is left out."""

    flags: tuple[str, ...] = ()
    """The last one takes the value: `--flag`, or `--flag.key` for one key of its JSON. Any before it are switches that
    are given with it."""
    silent: object = None
    """A value that is rendered as nothing, as the field's default is, since it is vLLM's own."""
    effective: object = None
    """What status.effective shows: a value, or a function of the section. None: vLLM decides, and nothing is shown."""


def knob(
    default: Any = None,
    /,
    *,
    examples: list[Any],
    description: str,
    flag: str | tuple[str, ...] = (),
    silent: object = None,
    effective: object = None,
    **bounds: Any,
) -> Any:
    """An optional field: what it does and when to change it, its bounds, an example, and what vLLM is told (`Knob`)."""
    field = Field(default, description=description, examples=examples, **bounds)
    flags = (flag,) if isinstance(flag, str) else flag
    field.metadata.append(Knob(flags, silent, effective))
    return field


def leaf(factory: Callable[[], Any], /, *, examples: list[Any], description: str, **bounds: Any) -> Any:
    """An optional list or map, empty when the user leaves it out."""
    return Field(default_factory=factory, description=description, examples=examples, **bounds)


def section(model: type[ApiModel], description: str, **bounds: Any) -> Any:
    """A group of fields that is there, with its defaults, when the user leaves it out.

    All services that leave it out share one: it cannot be changed, and most specs leave most sections out.
    """
    return Field(default_factory=functools.cache(lambda: model()), description=description, **bounds)
