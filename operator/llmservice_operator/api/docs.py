"""Reference pages, made from the same models as the CRD."""

from collections.abc import Iterator

from llmservice_operator.api.kubernetes import Schema
from llmservice_operator.api.matrix.page import page
from llmservice_operator.api.reasons import REASONS

_HEADER = "<!-- Generated from operator/llmservice_operator/api by `make crds`: do not edit. -->\n\n"
_SHAPED = {
    *("affinity", "securityContext", "resources", "env", "imagePullSecrets", "tolerations"),
    *("topologySpreadConstraints", "volumes", "volumeMounts", "initContainers"),
}


def fields_page(schema: Schema) -> str:
    """Every field of the spec and the status: type, bounds, meaning, example."""
    lines = ["# Fields of an LLMService\n", f"{schema['description']}\n", "## spec\n"]
    lines += _rows(schema["properties"]["spec"], "spec")
    lines += ["\n## status\n", f"{schema['properties']['status']['description']}\n"]
    lines += _rows(schema["properties"]["status"], "status")
    return _HEADER + "\n".join(lines) + "\n"


def reasons_page() -> str:
    """Every reason: what happened, what to do."""
    lines = [
        "# Reasons\n",
        "Words that stand in `status.conditions[].reason`, `status.failure.reason` and in Events.\n",
        "| Reason | What happened | What to do |",
        "|-|-|-|",
    ]
    lines += [f"| `{reason}` | {doc.summary} | {doc.remedy} |" for reason, doc in REASONS.items()]
    return _HEADER + "\n".join(lines) + "\n"


def compatibility_page() -> str:
    """Every pair that is refused: why, and what to do."""
    return _HEADER + page()


def _rows(schema: Schema, path: str) -> list[str]:
    return ["| Field | Type | What it does |", "|-|-|-|", *(_row(*field) for field in _fields(schema, path))]


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    required = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        yield below, part, name in required
        if name not in _SHAPED:
            yield from _fields(part, below)
            yield from _fields(part.get("items", {}), f"{below}[]")


def _row(path: str, schema: Schema, required: bool) -> str:
    text = schema.get("description", "").replace("|", "\\|").replace("\n", " ")
    needed = " **Required.**" if required else ""
    return f"| `{path}` | {_type(schema)} | {text}{needed} |"


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return _bounded("integer or string", schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}, at most {schema['maxItems']}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}, at most {schema.get('maxProperties')}"
    return _bounded(schema.get("type", "object"), schema)


def _bounded(kind: str, schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if "maxLength" in schema:
        return f"{kind}, at most {schema['maxLength']} characters"
    return kind
