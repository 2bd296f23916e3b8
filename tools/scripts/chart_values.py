"""The page of the chart's values, docs/reference/values.md, from values.yaml, its comments and values.schema.json.

python -m scripts.chart_values            write the page
python -m scripts.chart_values --check    exit code 1 where it is stale
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "llmservice-operator"
PAGE = ROOT / "docs" / "reference" / "values.md"
HEAD = (
    "# The chart's values\n\n"
    "Generated from the chart's [values.yaml](../../charts/llmservice-operator/values.yaml) and its JSON schema, which "
    "refuses every other key. Which values to decide on, and how to set them: [Configuring](../configuration.md).\n"
)
_DOCS = re.compile(r"docs/(?P<path>[\w/-]+\.md)")


@dataclass(frozen=True)
class Value:
    """One key of the chart: `path` has dots; `kind` and `default` are as the page shows them."""

    path: str
    kind: str
    default: str
    description: str
    is_group: bool


def values(text: str, schema: Mapping[str, Any]) -> Sequence[Value]:
    """Every key that the schema lists, in the order of values.yaml, each group before its keys.

    Of keys in adjacent lines, each with a single value, the first has the comment of all. Raises KeyError for a key of
    values.yaml that the schema does not have.
    """
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, text.splitlines(), schema, schema, ""))


def _values(
    node: yaml.MappingNode, lines: Sequence[str], schema: Mapping[str, Any], whole: Mapping[str, Any], above: str
) -> Iterator[Value]:
    description, below = "", -1
    for key, value in node.value:
        path, line = f"{above}{key.value}", key.start_mark.line
        part = schema["properties"][key.value]
        comment = comment_above(lines, line)
        description = comment or (description if line == below else "")
        is_group = "properties" in part and isinstance(value, yaml.MappingNode)
        below = line + 1 if value.end_mark.line == line else -1
        default = "" if is_group else json.dumps(yaml.safe_load(yaml.serialize(value)))
        yield Value(path, type_of(part, whole), default, description, is_group)
        if is_group:
            assert isinstance(value, yaml.MappingNode)
            yield from _values(value, lines, part, whole, f"{path}.")


def comment_above(lines: Sequence[str], line: int) -> str:
    """The comment that ends right above a line, with the same indentation, in one paragraph."""
    indent = " " * (len(lines[line]) - len(lines[line].lstrip(" ")))
    start = re.compile(f"{indent}# ?(?P<text>.*)$")
    found: list[str] = []
    while line and (comment := start.match(lines[line - 1])):
        found.insert(0, comment["text"])
        line -= 1
    return " ".join(found)


def type_of(part: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """The type of a value and its bounds, in a few words."""
    if "$ref" in part:
        return type_of(whole["definitions"][part["$ref"].rpartition("/")[2]], whole)
    if "enum" in part:
        return ", ".join(f"`{word}`" for word in part["enum"])
    kinds = part.get("type", "any")
    kind = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if kind == "array":
        items = type_of(part["items"], whole) if "items" in part else "any"
        return f"list of {items}"
    low, high = part.get("minimum"), part.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    return f"{kind}, {low} or more" if low is not None else kind


def page(found: Sequence[Value]) -> str:
    """The Markdown page: a table of single values, then a section for each group of them."""
    top = {value.path.partition(".")[0]: value for value in found if "." not in value.path}
    parts = [HEAD, table([value for value in top.values() if not value.is_group])]
    for name, group in top.items():
        if group.is_group:
            parts.append(f"## {name}\n")
            parts += [f"{linked(group.description)}\n"] if group.description else []
            parts.append(table([value for value in found if value.path.startswith(f"{name}.")]))
    return "\n".join(parts)


def table(rows: Sequence[Value]) -> str:
    lines = ["| value | type | default | |", "|-|-|-|-|"]
    for row in rows:
        if row.is_group and not row.description:
            continue
        default = f"`{cell(row.default)}`" if row.default else ""
        kind = "" if row.is_group else cell(row.kind)
        lines.append(f"| `{row.path}` | {kind} | {default} | {linked(cell(row.description))} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Inside a table of Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def linked(text: str) -> str:
    """Comments name pages by their path; the page links to them."""
    return _DOCS.sub(lambda found: f"[{found['path']}](../{found['path']})", text)


def rendered() -> str:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    return page(values(text, json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))))


def main(arguments: Sequence[str]) -> int:
    fresh = rendered()
    if "--check" not in arguments:
        PAGE.write_text(fresh, encoding="utf-8")
        return 0
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != fresh:
        print(f"{PAGE.relative_to(ROOT)} is stale: run `make crds`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
