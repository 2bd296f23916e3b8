"""The CustomResourceDefinition, made from the models: `python -m llmservice_api.crd [--check] [FOLDER]`."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from llmservice_api import constants
from llmservice_api.base import Rule
from llmservice_api.docs import compatibility_page, fields_page, reasons_page
from llmservice_api.kubernetes import Schema, shape
from llmservice_api.rules import RULES
from llmservice_api.spec import LLMServiceSpec
from llmservice_api.status import LLMServiceStatus

# Converts a pydantic model into a structural schema for the CRD.

_DROPPED = {"title", "additionalProperties", "default", "examples", "x-shape", "const", "$ref"}


def structural(model: type[BaseModel]) -> Schema:
    """The model's schema for a CRD: references resolved, keys removed that the API server refuses."""
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
    """The description with default and example: `kubectl explain` shows nothing else."""
    text: str = schema["description"]
    default = schema.get("default")
    if isinstance(default, str | int | float) and "Default: " not in text:
        text += f" Default: {_word(default)}."
    return f"{text} Example: {_word(schema['examples'][0])}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema behind a reference or an optional type; keys of the field itself take precedence."""
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
    """A rule for each fractional bound, by field path.

    For an integer value the API server compares only the whole part of a bound, so that 0 would pass `minimum: 0.05`.
    """
    return {path: tuple(found) for path, part in _below(root, "") if (found := list(_fraction_rules(part)))}


def _fraction_rules(part: Schema) -> Iterator[Rule]:
    for bound, sign, words in (("minimum", ">=", "at least"), ("maximum", "<=", "at most")):
        value = part.get(bound)
        if part.get("type") == "number" and value is not None and not float(value).is_integer():
            yield Rule(f"self {sign} {value}", f"must be {words} {value}: correct the number")


def _below(part: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every field, and every item of a list, with its path for `at`."""
    yield path, part
    for name, child in part.get("properties", {}).items():
        yield from _below(child, f"{path}.{name}".lstrip("."))
    if "items" in part:
        yield from _below(part["items"], f"{path}[]")


def attach(root: Schema, rules: Mapping[str, tuple[Rule, ...]]) -> None:
    """Add every rule at its path; KeyError for a path that the schema lacks."""
    for path, some in rules.items():
        place = at(root, path)
        place.setdefault("x-kubernetes-validations", []).extend(rule.to_object() for rule in some)


def at(root: Schema, path: str) -> Schema:
    """The part of a schema at a path such as spec.runtime.env[]."""
    place = root
    for part in filter(None, path.split(".")):
        place = place["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            place = place["items"]
    return place


_HEADER = "# Generated by `make crds`: do not edit.\n"
_READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'


def crd() -> dict[str, Any]:
    names = {
        "kind": constants.KIND,
        "listKind": constants.LIST_KIND,
        "plural": constants.PLURAL,
        "singular": constants.SINGULAR,
        "shortNames": list(constants.SHORT_NAMES),
        "categories": list(constants.CATEGORIES),
    }
    version = {
        "name": constants.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.scaling.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": columns(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": constants.CRD_NAME},
        "spec": {
            "group": constants.GROUP,
            "scope": "Namespaced",
            "names": names,
            "conversion": {"strategy": "None"},
            "versions": [version],
        },
    }


def schema() -> Schema:
    """openAPIV3Schema: the models, the two defaults that the API server needs, and the rules."""
    spec, status = structural(LLMServiceSpec), structural(LLMServiceStatus)
    _describe_in_force(status["properties"]["effective"], spec, "spec")
    # /scale answers 500 for an object without replicas, so the API server sets this default.
    spec["properties"]["scaling"]["default"] = {}
    spec["properties"]["scaling"]["properties"]["replicas"]["default"] = 1
    # Until the operator writes a status, tools must not take observedGeneration for current.
    status["default"] = {"observedGeneration": -1}
    root: Schema = {
        "description": "LLMService serves one large language model with vLLM behind an OpenAI-compatible endpoint. "
        "Only spec.model.uri must be given.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 64},
            "kind": {"type": "string", "maxLength": 64},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": spec,
            "status": status,
        },
    }
    attach(root, fraction_rules(root))
    attach(root, RULES)
    return root


def _describe_in_force(effective: Schema, spec: Schema, path: str) -> None:
    """Copy descriptions from the spec's fields to status.effective; KeyError where the spec lacks a field."""
    for name, part in effective["properties"].items():
        field, is_section = f"{path}.{name}", "properties" in part
        if "description" not in part:
            part["description"] = f"The {'values' if is_section else 'value'} in force of {field}."
            if name not in spec["properties"]:
                raise KeyError(field)
        if is_section:
            _describe_in_force(part, spec["properties"][name], field)


def columns() -> list[dict[str, Any]]:
    """Columns of `kubectl get llms`; those with priority 1 need `-o wide`."""
    rows = [
        ("Model", "string", ".spec.model.uri", 0, "Where the model comes from."),
        ("GPUs", "integer", ".status.gpus", 0, "GPUs that all wanted replicas ask for."),
        ("Ready", "string", ".status.ready", 0, "Ready and wanted replicas."),
        ("URL", "string", ".status.endpoint.url", 0, "Base address of the OpenAI API inside the cluster."),
        ("Reason", "string", _READY_REASON, 0, "Why it is ready, or is not."),
        ("Age", "date", ".metadata.creationTimestamp", 0, "Time since it was made."),
        ("Precision", "string", ".status.effective.precision.weights", 1, "What the weights are held in."),
        ("TP", "integer", ".status.effective.parallelism.tensorParallelSize", 1, "GPUs that a layer is split over."),
        ("KV tokens", "integer", ".status.measured.kvCacheTokens", 1, "Tokens that fit into a replica's KV cache."),
        ("Revision", "string", ".status.rollout.revision", 1, "Revision of the current spec."),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path, "description": text} | ({"priority": 1} if priority else {})
        for name, kind, path, priority, text in rows
    ]


def crd_yaml() -> str:
    return _HEADER + yaml.dump(crd(), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


def generated() -> dict[str, str]:
    """Contents of all generated files, by path from the repository's root."""
    text = crd_yaml()
    return {
        f"crds/{constants.CRD_NAME}.yaml": text,
        "charts/llmservice-operator/files/crd.yaml": text,
        "docs/reference/fields.md": fields_page(schema()),
        "docs/reference/reasons.md": reasons_page(),
        "docs/reference/compatibility.md": compatibility_page(),
    }


def stale(root: Path, files: Mapping[str, str]) -> list[str]:
    """Paths of the files that differ from the generated contents."""
    return [
        name
        for name, text in files.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text
    ]


class _Plain(yaml.SafeDumper):
    """YAML without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m llmservice_api.crd", description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="the repository's root (default: here)")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a file is stale")
    options = parser.parse_args(arguments)
    files = generated()
    old = stale(options.root, files)
    if options.check:
        for name in old:
            sys.stderr.write(f"{name} is stale: run `make crds`\n")
        return 1 if old else 0
    for name in old:
        path = options.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[name], encoding="utf-8")
        sys.stdout.write(f"wrote {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
