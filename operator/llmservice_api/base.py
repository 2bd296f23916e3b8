"""The base class of all API models, and functions that declare their fields."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic.alias_generators import to_camel

Json = dict[str, Any]
"""A value with Kubernetes' own schema, not interpreted here."""

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
"""A list, stored as a tuple. Items are checked strictly; the container is not, since JSON has no tuples."""

SET = {"x-kubernetes-list-type": "set"}
"""Server-side apply merges such a list by its items; other lists have a single owner."""

BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Server-side apply merges such a list by the names of its items, which must differ."""


class ApiModel(BaseModel):
    """A part of the spec: immutable, camelCase in JSON, with strict types as in the API server."""

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
    """The last one takes the value: `--flag`, or `--flag.key` for a key of its JSON. The others are switches that are
    rendered with it."""
    vllm_default: object = None
    """vLLM's default, which is not rendered; neither is the field's own default."""
    effective: object = None
    """Value in status.effective while the field is absent, or a function of the section. None: vLLM decides, and
    nothing is reported."""


def knob(
    default: Any = None,
    /,
    *,
    examples: list[Any],
    description: str,
    flag: str | tuple[str, ...] = (),
    vllm_default: object = None,
    effective: object = None,
    bounds: tuple[int, int] | None = None,
    **more: Any,
) -> Any:
    """An optional field: default, description, examples, bounds (lowest, highest), and its `Knob`."""
    if bounds is not None:
        more |= {"ge": bounds[0], "le": bounds[1]}
    field = Field(default, description=description, examples=examples, **more)
    flags = (flag,) if isinstance(flag, str) else flag
    field.metadata.append(Knob(flags, vllm_default, effective))
    return field


def leaf(factory: Callable[[], Any], /, *, examples: list[Any], description: str, **bounds: Any) -> Any:
    """An optional list or map, empty by default."""
    return Field(default_factory=factory, description=description, examples=examples, **bounds)


def section(model: type[ApiModel], description: str, **bounds: Any) -> Any:
    """A group of fields that is optional.

    All services without it share one frozen default instance, which saves memory.
    """
    return Field(default_factory=functools.cache(lambda: model()), description=description, **bounds)
