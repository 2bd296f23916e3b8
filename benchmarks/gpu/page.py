"""The findings as a page of docs/reference."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.findings import GIB, Figure, Findings
from benchmarks.pages import header, row


def page(found: Findings) -> str:
    """Markdown, with the product and the date that it holds for."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Findings) -> Iterator[str]:
    yield "# Measured on a GPU" if found.is_gpu else "# The measurement of GPUs, tried out on a CPU"
    yield ""
    yield f"{found.device}, {found.software}, {found.date}. `make test-gpu PAGE=FILE` makes this page on your machine."
    if found.figures:
        yield from ("", "## Memory", "")
        yield from header("what", "measured", "the planner", "")
        yield from map(_figure, found.figures)
    if found.attention:
        yield from ("", "## Attention", "")
        yield (
            f"One layer with {found.heads} heads of {found.head_dim}, one sequence. Naive attention stores all scores "
            "and their softmax; the planner's figure is of the scores alone. FlashAttention stores its result."
        )
        yield ""
        yield from header("tokens", "", "time", "memory", "the planner")
        for one in found.attention:
            took, peak, planned = one.seconds * 1000, one.peak_bytes / GIB, one.planned_bytes / GIB
            yield row(f"{one.tokens:,}", one.way, f"{took:.2f} ms", f"{peak:.3f} GiB", f"{planned:.3f} GiB")
    if found.skipped:
        yield from ("", "## Not measured", "")
        yield from (f"- {skipped.what}: {skipped.why}." for skipped in found.skipped)


def _figure(figure: Figure) -> str:
    planned = "" if figure.planned is None else f"{figure.planned:.2f} ± {figure.within or 0:.2f} {figure.unit}"
    verdict = {None: "", True: "agrees", False: "differs"}[figure.agrees]
    return f"| {figure.what} | {figure.measured:.2f} {figure.unit} | {planned} | {verdict} |"
