"""The result as one page of HTML that loads nothing: tables, and the picture as SVG inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from . import picture
from .lines import ABOUT, heading, remarks, summary_cells, vllm_cells
from .result import Result

STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser refuses what a hostile server's words might smuggle in."""


def page(result: Result) -> str:
    """Everything that a server or a user wrote is escaped."""
    title = f"llmservice bench: {result.model}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *_paragraphs([*heading(result), f"Started {result.started.isoformat(timespec='seconds')}."]),
            *_table(*summary_cells(result)),
            *_paragraphs([ABOUT, *remarks(result)]),
            picture.svg(result),
            *_table(*vllm_cells(result)),
            *_paragraphs(["The last table counts from a request's sending to its last token."]),
            "</body></html>",
            "",
        ]
    )


def _paragraphs(texts: Sequence[str]) -> Iterator[str]:
    return (f"<p>{escape(text)}</p>" for text in texts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"<table><thead>{_row('th', header)}</thead><tbody>"
    yield from (_row("td", row) for row in rows)
    yield "</tbody></table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
