"""The pages of docs/reference that are generated from the models and tables of `api`."""

import re
from collections.abc import Iterator

from llmservice_operator.api.kubernetes import SHAPED_FIELDS, Schema
from llmservice_operator.api.matrix.page import page
from llmservice_operator.api.reason_sections import SECTIONS
from llmservice_operator.api.reasons import Reason

_HEADER = "<!-- Generated from operator/llmservice_operator/api by `make crds`: do not edit. -->\n\n"


def fields_page(schema: Schema) -> str:
    """Every field of the spec and the status: type, bounds, meaning, example."""
    lines = ["# Fields of an LLMService\n", f"{schema['description']}\n", "## spec\n"]
    lines += _rows(schema["properties"]["spec"], "spec")
    lines += ["\n## status\n", f"{schema['properties']['status']['description']}\n"]
    lines += _rows(schema["properties"]["status"], "status")
    return _HEADER + "\n".join(lines) + "\n"


def reasons_page() -> str:
    """Every reason by section: what happened, where to look, what to do."""
    lines = [
        "# What went wrong and what to do\n",
        "The words that stand in the column REASON of `kubectl get llms`, in `status.conditions[].reason`, in "
        "`status.failure.reason` and in Events. `status.failure` has the sentence for your case, since when and in "
        "which pod it was seen, the log lines that show it, and what to do. One Event on the LLMService reports "
        "each failure when it begins; the metric `llmservice_failing_services` counts the services that have one, by "
        "reason.\n",
        "For a service: `kubectl get llms NAME`, then `kubectl describe llms NAME`. In the commands below NAME is "
        "that of the LLMService.\n",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}\n", *([f"{section.intro}\n"] if section.intro else [])]
        lines += ["| Reason | What happened | What to look at | What to do |", "|-|-|-|-|"]
        lines += [_reason_row(reason) for reason in Reason if reason.row.section is section]
        lines.append("")
    return _HEADER + "\n".join(lines)


def _reason_row(reason: Reason) -> str:
    cells = [cell.replace("|", "\\|") for cell in (reason.summary, reason.row.look, reason.remedy)]
    return f"| `{reason}` | {' | '.join(cells)} |"


def compatibility_page() -> str:
    """Every refused pair: why, and what to do."""
    return _HEADER + page()


def _rows(schema: Schema, path: str) -> list[str]:
    return ["| Field | Type | What it does |", "|-|-|-|", *(_row(*field) for field in _fields(schema, path))]


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    required = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        yield below, part, name in required
        if name not in SHAPED_FIELDS:
            yield from _fields(part, below)
            yield from _fields(part.get("items", {}), f"{below}[]")


def _row(path: str, schema: Schema, required: bool) -> str:
    text = schema.get("description", "").replace("|", "\\|").replace("\n", " ")
    text = re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", text)
    needed = " **Required.**" if required else ""
    return f"| `{path}` | {type_of(schema)} | {text}{needed} |"


def type_of(schema: Schema) -> str:
    """Type and bounds of a value in words, literals in backquotes."""
    if schema.get("x-kubernetes-int-or-string"):
        return _bounded("integer or string", schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'])}, at most {schema['maxItems']}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {type_of(schema['additionalProperties'])}, at most {schema.get('maxProperties')}"
    return _bounded(schema.get("type", "object"), schema)


def _bounded(kind: str, schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if "maxLength" in schema:
        return f"{kind}, at most {schema['maxLength']} characters"
    return kind
