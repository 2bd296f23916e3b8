"""`python -m benchmarks.fetch.page`: the page of the kept run; `--check` says whether it is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path

from benchmarks.fetch.kept import MIB, RESULTS, Results, Speed, read
from benchmarks.pages import header, main, number, row

PAGE = "docs/reference/fetch.md"
OURS, OLD, PLAIN = "ours", "before", "read and dropped"
OWN = (OURS, OLD, PLAIN)
AGAIN = 0.10
"""The goal: no larger share of a model is fetched again after a kill."""

HEAD = """\
# Fetching models: the kept run

<!-- Generated: python -m benchmarks.fetch.page -->

How fast a model is fetched from local servers, beside the tools that people use. `ours` is what a pod runs; `before` is
the fetch with the standard library that it replaced (commit 9543e91)."""
NONE = "No run is kept yet."
HOW = f"""\
## How it is measured

- Client and server share one machine, so a figure is no network's: it says what a client costs, and where it is the
  limit.
- The hub is the tests' stand-in (`tests/support/hub.py`); as the real one it redirects to another server for the
  weights, here a process that sends with `sendfile`. `{PLAIN}` is that server's own speed: eight connections that
  keep nothing. Xet storage is not part of it.
- S3 is VersityGW on a folder, filled by s5cmd, in parts where a file is larger than 50 MiB. Google's
  is fake-gcs-server, from memory; Azure's is Azurite (Node.js), on a folder. For these two no other tool is
  measured, and no kill for Google's, which answers at the port that it was started for only.
- The tools take turns; each starts with an empty folder on a disk that has nothing left to write. MB/s is the size of
  the model by wall time from start to end of the process, as median (lowest to highest).
- `ours` and `before` end when the files are on the disk (fsync), so that a node that loses power leaves no damaged
  model; the other tools end when the operating system has them.
- CPU is user and system time of the process and its children. Memory is the sum of their peaks of resident memory, and
  the most of all runs.
- After a kill: the process group gets SIGKILL once a proxy has passed on half of the model, at 200 MB/s, and the tool
  starts again with the same folder. What the server sent in both runs beyond the model's size was fetched again. What
  was under way between server and client is part of that."""


def page(results: Results | None) -> str:
    if results is None:
        return "\n".join([HEAD, "", NONE, "", HOW, ""])
    parts = [_tools(results), *(_speeds(results, place) for place in results.places()), _kills(results)]
    lines = [HEAD]
    for part in parts:
        lines += ["", *section] if (section := list(part)) else []
    return "\n".join([*lines, "", HOW, ""])


def best_other(speeds: Sequence[Speed]) -> float:
    """MB/s of the fastest of the tools that are not ours; NaN where there is none."""
    return max((speed.mb_per_second[1] for speed in speeds if speed.tool not in OWN), default=nan)


def _tools(results: Results) -> Iterator[str]:
    found = ", ".join(f"{name} {version.removeprefix('v')}" for name, version in results.versions.items())
    yield f"Measured on {results.machine}, to {results.folder}: `{results.command}`. {found}."
    yield ""
    yield from header("tool", "compares what came with")
    for name, verifies in results.verifies.items():
        yield row(f"`{name}`", verifies)


def _speeds(results: Results, place: str) -> Iterator[str]:
    yield from (f"## {place}", "")
    yield from header("files", "tool", "MB/s", "of the best other tool", "CPU s per GB", "peak memory, MiB")
    for model in results.models(place):
        speeds = list(results.of(place, model))
        best = best_other(speeds)
        for speed in speeds:
            low, middle, high = speed.mb_per_second
            ratio = "" if speed.tool == PLAIN else _ratio(speed.tool, middle / best)
            pace = f"{number(middle)} ({number(low)} to {number(high)})"
            cells = (pace, ratio, number(speed.cpu_per_gb), number(speed.peak_mib))
            yield row(f"{model[0]} × {number(model[1] / model[0] / MIB)} MiB", f"`{speed.tool}`", *cells)


def _ratio(tool: str, value: float) -> str:
    is_missed = tool == OURS and value < 1
    return f"**{value:.2f}** missed" if is_missed else f"{value:.2f}".replace("nan", "-")


def _kills(results: Results) -> Iterator[str]:
    if not results.kills:
        return
    yield from ("## Killed at half", "")
    yield from header("place", "files", "tool", "fetched again", "whole afterwards")
    for killed in results.kills:
        is_missed = killed.tool == OURS and killed.again > AGAIN
        again = f"**{killed.again:.1%}** missed" if is_missed else f"{killed.again:.1%}"
        yield row(killed.place, str(killed.files), f"`{killed.tool}`", again, "yes" if killed.whole else "**no**")


def generated(root: Path) -> dict[str, str]:
    """What the files should be, by path, for the kept run of this checkout."""
    return {PAGE: page(read(root / RESULTS))}


if __name__ == "__main__":
    sys.exit(main("benchmarks.fetch.page", __doc__, generated))
