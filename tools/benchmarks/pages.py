"""Pages that are made of kept runs: Markdown tables, and the command that writes the files or finds them stale."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path

ROOT = Path(__file__).parents[2]


def number(value: float) -> str:
    """Three digits that say something; "-" is not measured."""
    if isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*cells: str) -> Iterator[str]:
    """Its first two lines."""
    yield row(*cells)
    yield f"|{'-|' * len(cells)}"


def stale(root: Path, files: Mapping[str, str]) -> list[str]:
    """Those that are not so, or not there."""
    paths = {name: root / name for name in files}
    return [name for name, path in paths.items() if not path.exists() or path.read_text("utf-8") != files[name]]


def main(
    module: str, description: str | None, generated: Callable[[Path], Mapping[str, str]],
    argv: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """Writes what `generated` gives for a checkout, by path; with `--check` 1 where a file is stale."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="of the checkout (default: this one)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something is stale")
    arguments = parser.parse_args(argv)
    files = generated(arguments.root)
    if arguments.check:
        names = stale(arguments.root, files)
        for name in names:
            print(f"{name} is stale: run `python -m {module}`", file=sys.stderr)
        return int(bool(names))
    for name, text in files.items():
        path = arguments.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0
