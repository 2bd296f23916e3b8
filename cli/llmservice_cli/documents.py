"""Answers on standard output: text for people, or one document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmservice_runtime.bounded_json import clean

from . import terminal
from .terminal import Row

_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0xD800, 0xE000))}
"""What JSON leaves as it is: control characters, which terminals obey, and halves of surrogate pairs."""


def show(output: str, lines: Callable[[], Iterable[str]], document: Callable[[], Any]) -> None:
    """`table`: the lines, as a terminal may show them; else the document as `json` or `yaml`."""
    if output in ("json", "yaml"):
        tell(written(output, document()), end="")
    else:
        tell("\n".join(lines()))


def answer(output: str, rows: Callable[[], Iterable[Row]], document: Callable[[], Any]) -> None:
    """`table`: the rows; else the document as `json` or `yaml`."""
    if output == "table":
        terminal.show(rows())
    else:
        tell(written(output, document()), end="")


def tell(text: str, *, end: str = "\n") -> None:
    """On standard output at once, without what a terminal would obey."""
    print(clean(text), end=end, flush=True)


def in_a_line(document: Any) -> str:
    """The text of one document as JSON, without a newline."""
    import json

    return json.dumps(document, ensure_ascii=False).translate(_ESCAPED)


def written(output: str, document: Any) -> str:
    """The text of one document, with a newline at its end."""
    if output == "json":
        import json

        return json.dumps(document, indent=2, ensure_ascii=False).translate(_ESCAPED) + "\n"
    import yaml

    text: str = yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True, width=2**16)
    return clean(text)


def _plain(value: Any) -> Any:
    """Without enums and tuples, which YAML's safe writer does not know."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value
