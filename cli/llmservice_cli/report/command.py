"""`llmservice report`: collects, takes secrets out, and writes one file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.doctor.gather import gather
from llmservice_cli.documents import show
from llmservice_cli.errors import BadInput, CliError, ExitCode
from llmservice_cli.progress import Steps, shown
from llmservice_cli.report import Options
from llmservice_cli.report.collecting import (
    README,
    Entry,
    File,
    Gap,
    Material,
    archive,
    files,
    readme,
)
from llmservice_cli.text import table

from .collecting import of_operator, of_service, read_all


async def run(options: Options) -> ExitCode:
    """Print what is in the bundle, and what is missing."""
    moment = datetime.now(UTC)
    subject = options.name or "operator"
    title = f"{subject}-report-{moment:%Y%m%dT%H%M%SZ}"
    out = options.out or Path(f"{title}.tar.gz")
    if not options.dry_run and out.exists():
        raise BadInput.of("--out", f"{out} exists already.", "Name another file, or remove it.")
    material = Material()
    async with connect(options) as connection:
        steps = Steps("reading objects, logs and metrics")
        async with shown(steps):
            facts = await gather(connection.kube, connection.namespace, steps)
            if options.name is None:
                await of_operator(connection.kube, material, options.lines, facts)
            else:
                await of_service(connection.kube, material, connection.namespace, options.name, options.lines, facts)
            if options.dry_run:
                would_hold = document(None, rows_of(material), material)
                show(options.output, lambda: planned(material, out), lambda: would_hold)
                return ExitCode.DONE
            entries = [*material.entries, *await read_all(material, steps=steps)]
    found = bundled(title, entries, material.gaps)
    content = archive(title, found, time.time())
    _write(out, content)
    held = [{"path": one.path, "bytes": len(one.content), "what": one.what} for one in found]
    show(
        options.output,
        lambda: summary(found, material.gaps, out, len(content)),
        lambda: document(out, held, material),
    )
    return ExitCode.DONE


def bundled(title: str, entries: list[Entry], gaps: list[Gap]) -> list[File]:
    """The files of a bundle, the README.md first."""
    found = files(entries, gaps)
    text = readme(title, found, gaps)
    return [File(README, "what each file is, and what is missing", text.encode()), *found]


def rows_of(material: Material) -> list[Json]:
    """What a bundle would hold."""
    there = [{"path": one.path, "what": one.what} for one in material.entries]
    return there + [{"path": one.path, "what": one.what} for one in material.planned]


def document(out: Path | None, held: list[Json], material: Material) -> Json:
    """Names are only ever added; `file` is null where nothing was written."""
    missing = [{"what": gap.what, "why": gap.why} for gap in material.gaps]
    return {"version": 1, "file": None if out is None else str(out), "files": held, "missing": missing}


def planned(material: Material, out: Path) -> Iterator[str]:
    yield f"{out} would hold, without what looks like a secret:"
    yield from _clean(table(["FILE", "WHAT"], [[row["path"], row["what"]] for row in rows_of(material)]))
    yield from _gaps(material.gaps)


def summary(found: Iterable[File], gaps: Iterable[Gap], out: Path, size: int) -> Iterator[str]:
    rows = [[one.path, f"{len(one.content):,}", one.what] for one in found]
    yield from _clean(table(["FILE", "BYTES", "WHAT"], rows, right=frozenset({1})))
    yield from _gaps(gaps)
    yield f"wrote {out} ({size:,} bytes): look through it before you hand it out"


def _gaps(gaps: Iterable[Gap]) -> Iterator[str]:
    found = list(gaps)
    if found:
        yield "not in it:"
        yield from _clean(f"  {gap.what}: {gap.why}" for gap in found)


def _clean(lines: Iterable[str]) -> Iterator[str]:
    return map(clean, lines)


def _write(out: Path, content: bytes) -> None:
    """Readable by the user alone."""
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        raise CliError(f"{out} cannot be written: {error.strerror}", "name another file with --out") from None
