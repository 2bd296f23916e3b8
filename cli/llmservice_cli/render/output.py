"""Previews on standard output: for people, as manifests, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import yaml

from llmservice_cli.documents import written
from llmservice_cli.masking import masked, redactor_of
from llmservice_cli.terminal import is_styled

from .preview import Preview

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_PLAIN = "\033[0m"


def show(previews: Sequence[Preview], output: str) -> None:
    """json, yaml, table, diff, or `manifests` with the rest as comments."""
    documents = [preview.document() for preview in previews]
    redactor = redactor_of(documents, [preview.spec for preview in previews])
    if output in ("json", "yaml"):
        print(written(output, {"version": 1, "services": masked(documents, redactor)}), end="")
        return
    for index, preview in enumerate(previews):
        lines = [redactor.clean(line) for line in preview.lines()]
        if output == "manifests":
            print("\n".join(f"# {line}" for line in lines))
            for change in preview.changes:
                if change.manifest is not None:
                    text = yaml.safe_dump(masked(change.manifest, redactor), sort_keys=False, width=2**16)
                    print(f"---\n{text}", end="")
            continue
        print("\n".join([*([""] if index else []), *lines]))
        for diff in preview.diffs.values() if output == "diff" else ():
            print("\n".join(["", *_coloured(redactor.clean(diff).splitlines())]))


def _coloured(lines: Iterable[str]) -> Iterable[str]:
    """On a terminal that shows colours, else as they are."""
    if not is_styled():
        return lines
    return [f"{_COLOURS[line[0]]}{line}{_PLAIN}" if line[:1] in _COLOURS else line for line in lines]
