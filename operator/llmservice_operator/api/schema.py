"""From a pydantic model to a structural schema, as a CRD wants it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from llmservice_operator.api.kubernetes import Schema, shape
from llmservice_operator.api.rule import Rule

_DROPPED = {"title", "additionalProperties", "default", "examples", "x-shape", "const", "$ref"}


def structural(model: type[BaseModel]) -> Schema:
    """The model's schema as a CRD takes it: references resolved, keys that the API server refuses left out."""
    document = model.model_json_schema(by_alias=True)
    return _convert(document, document.get("$defs", {}))


def _convert(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    schema = _resolved(schema, definitions)
    result = {key: value for key, value in schema.items() if key not in _DROPPED and key != "$defs"}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if "x-shape" in schema:
        result |= {
            key: value for key, value in shape(schema["x-shape"]).items() if key not in result or key != "description"
        }
    elif "properties" in schema:
        example: Mapping[str, Any] = next(iter(schema.get("examples", ())), {})
        result["properties"] = {
            name: _convert(part | ({"examples": [example[name]]} if name in example else {}), definitions)
            for name, part in schema["properties"].items()
        }
    elif "items" in schema:
        result["items"] = _convert(schema["items"], definitions)
        result.setdefault("x-kubernetes-list-type", "atomic")
    elif isinstance(schema.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _convert(schema["additionalProperties"], definitions)
    if schema.get("examples"):
        result["example"] = schema["examples"][0]
        result["description"] = _documented(schema)
    if result.get("type") == "integer" and "enum" not in result:
        result["format"] = "int64"
    if result.get("type") == "number":
        result["format"] = "double"
    return result


def _documented(schema: Mapping[str, Any]) -> str:
    """`kubectl explain` shows the description and nothing else, so default and example are part of it."""
    text: str = schema["description"]
    default = schema.get("default")
    if isinstance(default, str | int | float) and "Default: " not in text:
        text += f" Default: {_word(default)}."
    return f"{text} Example: {_word(schema['examples'][0])}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema behind a reference or an optional type; keys of the field itself win."""
    own = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    if "$ref" in schema:
        return _resolved(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions) | own
    if "x-kubernetes-int-or-string" in schema:
        own["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        return own
    if "anyOf" in schema:
        (kind,) = (part for part in schema["anyOf"] if part != {"type": "null"})
        return _resolved(kind, definitions) | own
    return own


def fraction_rules(root: Schema) -> Mapping[str, tuple[Rule, ...]]:
    """A rule for each bound with a fraction, by the field's path.

    Of a bound the API server compares only the whole part with a whole number, so that 0 would pass `minimum: 0.05`.
    """
    return {path: tuple(found) for path, part in _below(root, "") if (found := list(_fraction_rules(part)))}


def _fraction_rules(part: Schema) -> Iterator[Rule]:
    for bound, sign, words in (("minimum", ">=", "at least"), ("maximum", "<=", "at most")):
        value = part.get(bound)
        if part.get("type") == "number" and value is not None and not float(value).is_integer():
            yield Rule(f"self {sign} {value}", f"must be {words} {value}: correct the number")


def _below(part: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every field, and every item of a list, with its path as `at` takes it."""
    yield path, part
    for name, child in part.get("properties", {}).items():
        yield from _below(child, f"{path}.{name}".lstrip("."))
    if "items" in part:
        yield from _below(part["items"], f"{path}[]")


def attach(root: Schema, rules: Mapping[str, tuple[Rule, ...]]) -> None:
    """Put every rule at its place; a place that the schema does not have is an error."""
    for path, some in rules.items():
        place = at(root, path)
        place.setdefault("x-kubernetes-validations", []).extend(rule.to_object() for rule in some)


def at(root: Schema, path: str) -> Schema:
    """The part of a schema that a path such as spec.runtime.env[] leads to."""
    place = root
    for part in filter(None, path.split(".")):
        place = place["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            place = place["items"]
    return place
