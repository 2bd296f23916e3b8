"""The base class of all API models, functions that declare their fields, small types for several parts of the spec, and
CEL rules across fields, which the API server evaluates.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints, WithJsonSchema, model_validator
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


DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY = r"^[0-9]{1,12}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)$"
QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
IMAGE = (
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[a-f0-9]{64})?$"
)

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
ImageRef = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=IMAGE)]
Quantity = Annotated[str, StringConstraints(min_length=2, max_length=25, pattern=QUANTITY)]
NamespaceName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)]
Hostname = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=HOSTNAME)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
ServedName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")
]


def integer_or_auto_schema(most: int) -> WithJsonSchema:
    """The CRD's schema of an integer from 1 to `most`, or `auto`."""
    return WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": most,
            "maxLength": 4,
            "pattern": "^auto$",
        }
    )


class SecretKeyRef(ApiModel):
    """One key of a Secret in the namespace of the LLMService."""

    name: ObjectName = Field(description="Name of a Secret in the same namespace.")
    key: DataKey = Field(description="Key in the Secret's data that has the value.")


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the namespace of the LLMService."""

    name: ObjectName = Field(description="Name of a ConfigMap in the same namespace.")
    key: DataKey = Field(description="Key in the ConfigMap's data that has the text.")


class SecretRef(ApiModel):
    """A Secret in the namespace of the LLMService."""

    name: ObjectName = Field(description="Name of a Secret in the same namespace.")


@dataclass(frozen=True, slots=True)
class Rule:
    """CEL that must be true; the message has the problem and the remedy. `field` is relative to the rule's path."""

    rule: str
    message: str
    field: str | None = None
    message_expression: str | None = None

    def to_object(self) -> dict[str, Any]:
        """As an item of x-kubernetes-validations."""
        item = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        if self.field is not None:
            item["fieldPath"] = self.field
        if self.message_expression is not None:
            item["messageExpression"] = self.message_expression
        return item


def cel_list(values: Iterable[str]) -> str:
    return "[" + ", ".join(cel_string(value) for value in values) + "]"


def cel_string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
