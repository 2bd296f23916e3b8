"""The findings as a page of docs/reference."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.findings import GIB, Figure, Findings


def page(found: Findings) -> str:
    """Markdown, with the product and the date that it holds for."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Findings) -> Iterator[str]:
    yield "# Measured on a GPU" if found.is_gpu else "# The measurement of GPUs, tried out on a CPU"
    yield ""
    yield f"{found.device}, {found.software}, {found.date}. `make test-gpu PAGE=FILE` makes this page on your machine."
    if found.figures:
        yield ""
        yield "## Memory"
        yield ""
        yield "| what | measured | the planner | |"
        yield "|-|-|-|-|"
        for figure in found.figures:
            yield _figure(figure)
    if found.attention:
        yield ""
        yield "## Attention"
        yield ""
        yield (
            f"One layer with {found.heads} heads of {found.head_dim}, one sequence. Naive attention stores all scores "
            "and their softmax; the planner's figure is of the scores alone. FlashAttention stores its result."
        )
        yield ""
        yield "| tokens | | time | memory | the planner |"
        yield "|-|-|-|-|-|"
        for one in found.attention:
            yield (
                f"| {one.tokens:,} | {one.way} | {one.seconds * 1000:.2f} ms | {one.peak_bytes / GIB:.3f} GiB "
                f"| {one.planned_bytes / GIB:.3f} GiB |"
            )
    if found.skipped:
        yield ""
        yield "## Not measured"
        yield ""
        for skipped in found.skipped:
            yield f"- {skipped.what}: {skipped.why}."


def _figure(figure: Figure) -> str:
    planned = "" if figure.planned is None else f"{figure.planned:.2f} ± {figure.within or 0:.2f} {figure.unit}"
    verdict = {None: "", True: "agrees", False: "differs"}[figure.agrees]
    return f"| {figure.what} | {figure.measured:.2f} {figure.unit} | {planned} | {verdict} |"
