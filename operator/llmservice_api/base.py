"""The base of all API models, and functions that declare their fields."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic.alias_generators import to_camel

Json = dict[str, Any]
"""A value with Kubernetes' own schema, passed on unchanged."""

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
"""A list, kept as a tuple: the items are strict, the container is not, since JSON has no tuples."""

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
        """Drop `field: null`, as the API server does, for manifests that did not pass through it."""
        if isinstance(value, Mapping):
            return {key: item for key, item in value.items() if item is not None}
        return value


@dataclass(frozen=True, slots=True)
class Knob:
    """The vLLM flags of a field, and its effective value while it is absent."""

    flags: tuple[str, ...] = ()
    """The last one takes the value: `--flag`, or `--flag.key` for a key of its JSON. Earlier ones are switches that are
    rendered with it."""
    silent: object = None
    """A value that is not rendered, since it is vLLM's default; neither is the field's own default."""
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
    bounds: tuple[int, int] | None = None,
    **more: Any,
) -> Any:
    """An optional field: description, examples, its least and greatest value, and its `Knob`."""
    if bounds is not None:
        more |= {"ge": bounds[0], "le": bounds[1]}
    field = Field(default, description=description, examples=examples, **more)
    flags = (flag,) if isinstance(flag, str) else flag
    field.metadata.append(Knob(flags, silent, effective))
    return field


def leaf(factory: Callable[[], Any], /, *, examples: list[Any], description: str, **bounds: Any) -> Any:
    """An optional list or map, empty by default."""
    return Field(default_factory=factory, description=description, examples=examples, **bounds)


def section(model: type[ApiModel], description: str, **bounds: Any) -> Any:
    """A group of fields, with its defaults where the user leaves it out.

    All services that leave it out share one frozen instance, which saves memory.
    """
    return Field(default_factory=functools.cache(lambda: model()), description=description, **bounds)
