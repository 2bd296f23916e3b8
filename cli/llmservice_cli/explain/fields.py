"""A field of the LLMService as the CRD and its models have it: type, bounds, default, vLLM's flag, what is below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from llmservice_api.base import ApiModel, Knob
from llmservice_api.crd import schema
from llmservice_api.docs import type_of
from llmservice_api.flags import FLAGS
from llmservice_api.kubernetes import Schema
from llmservice_api.spec import LLMServiceSpec

LIST = "[]"


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `default` and `example` are None where there is none."""

    path: str
    type: str
    description: str
    default: Any
    example: Any
    flags: tuple[str, ...]
    is_required: bool
    below: tuple[str, ...]
    """Paths of the fields of an object, or of the objects of a list."""

    def to_object(self) -> dict[str, Any]:
        """JSON, without what there is none of."""
        found = {
            "path": self.path,
            "type": self.type,
            "description": self.description,
            "default": self.default,
            "example": self.example,
            "flags": list(self.flags),
            "required": self.is_required,
        }
        return {name: value for name, value in found.items() if value not in (None, [])}


def fields() -> dict[str, Field]:
    """Every field of spec and status by its path, in the CRD's order; `[]` follows the name of a list."""
    flags: dict[str, list[str]] = {}
    for flag in FLAGS:
        flags.setdefault(flag.field, []).append(flag.name)
    defaults = dict(_defaults(LLMServiceSpec, "spec"))
    root = schema()
    found: dict[str, Field] = {}
    for path, part, is_required in _walk(root["properties"]["spec"], "spec", True):
        found[path] = _field(path, part, is_required, flags, defaults)
    for path, part, is_required in _walk(root["properties"]["status"], "status", False):
        found[path] = _field(path, part, is_required, {}, {})
    return found


def _walk(part: Schema, path: str, is_required: bool) -> Iterator[tuple[str, Schema, bool]]:
    yield path, part, is_required
    for below, name, child in _children(part, path):
        yield from _walk(child, below, name in _object(part).get("required", ()))


def _object(part: Schema) -> Schema:
    """The object that has the fields: the part itself, or an item of the list."""
    items: Schema = part.get("items", {})
    return items if "properties" in items else part


def _children(part: Schema, path: str) -> Iterator[tuple[str, str, Schema]]:
    holder = _object(part)
    where = path if holder is part else f"{path}{LIST}"
    for name, child in holder.get("properties", {}).items():
        yield f"{where}.{name}", name, child


def _field(
    path: str, part: Schema, is_required: bool, flags: Mapping[str, list[str]], defaults: Mapping[str, Any]
) -> Field:
    text = str(part.get("description", ""))
    text = text.rpartition(" Example: ")[0] if "example" in part and " Example: " in text else text
    text, _, stated = text.partition(" Default: ")
    plain = path.replace(LIST, "")
    default = part.get("default", defaults.get(plain))
    return Field(
        path=path,
        type=type_of(part).replace("`", ""),
        description=text,
        default=stated.removesuffix(".") if default is None and stated else default,
        example=part.get("example"),
        flags=tuple(flags.get(plain, ())),
        is_required=is_required,
        below=tuple(below for below, _, _ in _children(part, path)),
    )


def _defaults(model: type[ApiModel], path: str) -> Iterator[tuple[str, Any]]:
    """Values that hold where a field is left out, as far as they are values and no computation."""
    for name, info in model.model_fields.items():
        where = f"{path}.{info.alias or name}"
        knob = next((one for one in info.metadata if isinstance(one, Knob)), Knob())
        for value in (info.default, knob.effective):
            if isinstance(value, str | int | float):
                yield where, value
                break
        for kind in _models(info.annotation):
            yield from _defaults(kind, where)


def _models(annotation: Any) -> Iterator[type[ApiModel]]:
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models(one)
