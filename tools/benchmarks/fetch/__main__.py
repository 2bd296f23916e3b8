"""`python -m benchmarks.fetch`: MB/s, CPU and memory of our fetch beside other tools; what a kill makes fetched again.

Everything is on this machine: real local servers, the loopback interface, a folder for what is fetched. The tools take
turns, so that a machine whose speed drifts drifts for all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.fetch import page
from benchmarks.fetch.kept import MIB, RESULTS, Killed, Results, Speed
from benchmarks.fetch.measured import Command, Run, ToolFailed, kill_when, measure
from benchmarks.fetch.page import OLD, OURS, PLAIN
from benchmarks.fetch.places import PLACES, ROOT, Place, make_files, plain_environment, same
from benchmarks.fetch.proxy import Proxy, proxied
from benchmarks.fetch.tools import Tool, others, ours, versions

CONNECTIONS = 8
KILL_BYTES_PER_SECOND = 200e6
"""So slow that a tool is killed where it is meant to be."""


class Measuring:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._tools = [ours(options.ours)]
        if options.old:
            self._tools.append(ours(options.old, OLD))
        self._tools += others(options.places)
        if options.tools:
            self._tools = [tool for tool in self._tools if tool.name in options.tools]
        self.results = Results(
            machine=_machine(),
            folder=_file_system(options.folder),
            versions=versions(),
            verifies={tool.name: tool.verifies for tool in self._tools},
            command=_command_line(options),
        )

    def run(self) -> None:
        """One model after the other, so that the disk holds one at a time."""
        megabytes = self._options.megabytes
        models = [(count, megabytes * MIB) for count in self._options.files]
        if self._options.large:
            models.append((1, self._options.large * MIB))
        for count, size in models:
            for kind in self._options.places:
                with _scratch(self._options.folder) as scratch:
                    files = scratch / "files"
                    total = make_files(files, count, size)
                    with PLACES[kind](files, scratch) as place:
                        tools = [tool for tool in self._tools if kind in tool.kinds]
                        self._speeds(place, tools, scratch, count, total)
                        if (count, size) in models[: len(self._options.files)]:
                            for tool in tools:
                                self._kill(place, tool, files, scratch, count, total)

    def _speeds(self, place: Place, tools: Sequence[Tool], scratch: Path, count: int, size: int) -> None:
        names = [tool.name for tool in tools]
        runs: dict[str, list[Run]] = {name: [] for name in names}
        for round_ in range(self._options.warmups + self._options.rounds):
            # Another one is first each time: what the one before leaves to be written is not always for the same.
            turn = round_ % len(tools)
            for tool in (*tools[turn:], *tools[:turn]):
                with _target(scratch) as folder:
                    found = _tried(partial(measure, tool.command(place, folder)))
                if found is not None and round_ >= self._options.warmups:
                    runs[tool.name].append(found)
                    _log(f"{place.title}, {count} files, {tool.name}: {size / 1e6 / found.seconds:.0f} MB/s, {found}")
        if place.urls:
            plain = [measure(_plain(place)) for _ in range(self._options.rounds)]
            runs = {PLAIN: plain, **runs}
        speeds = (Speed(place.title, name, count, size, tuple(found)) for name, found in runs.items() if found)
        self.results = replace(self.results, speeds=(*self.results.speeds, *speeds))

    def _kill(self, place: Place, tool: Tool, files: Path, scratch: Path, count: int, size: int) -> None:
        """At half of all bytes; then once more to the end, with the same folder."""
        if not self._options.kills or place.through is None:
            return
        with proxied(place.port, KILL_BYTES_PER_SECOND) as proxy, _target(scratch) as folder:
            command = tool.command(place, folder, proxy.port)
            before = self._until_half(command, proxy, size)
            if before is None:
                return
            found = _tried(partial(measure, command))
            is_whole = found is not None and same(files, folder)
            killed = Killed(place.title, tool.name, count, size, before, proxy.sent - before, is_whole)
        place.through(place.port)
        _log(f"{place.title}, {count} files, {tool.name} killed at half: {killed.again:.0%} again, whole: {is_whole}")
        self.results = replace(self.results, kills=(*self.results.kills, killed))

    def _until_half(self, command: Command, proxy: Proxy, size: int) -> int | None:
        try:
            if not kill_when(command, lambda: proxy.sent >= size / 2):
                _log("it ended before it could be killed")
                return None
        except ToolFailed as error:
            _log(str(error))
            return None
        return proxy.quiet()


def _tried(action: Callable[[], Run]) -> Run | None:
    """None, with a line on standard error, where a tool fails: the others go on."""
    try:
        return action()
    except ToolFailed as error:
        _log(str(error))
        return None


def _plain(place: Place) -> Command:
    argv = (sys.executable, "-m", "benchmarks.fetch.plain", str(CONNECTIONS), *place.urls)
    return Command(argv, plain_environment(), ROOT)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-fetch-", dir=folder) as name:
        yield Path(name)


@contextmanager
def _target(scratch: Path) -> Iterator[Path]:
    """An empty folder, on a disk that has nothing left to write."""
    folder = scratch / "target"
    folder.mkdir()
    os.sync()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} cores, {memory:.0f} GiB"


def _file_system(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((len(at), kind) for at, kind in mounts if folder.resolve().is_relative_to(at))[1]


def _command_line(options: argparse.Namespace) -> str:
    words = ["python -m benchmarks.fetch", f"--rounds {options.rounds}", f"--megabytes {options.megabytes}"]
    if options.old:
        words.append("--old CHECKOUT")
    return " ".join(words)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m benchmarks.fetch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--ours", type=Path, default=ROOT, help="checkout whose fetch is measured (default: this one)")
    out.add_argument("--old", type=Path, help="checkout whose fetch is measured beside it")
    out.add_argument("--files", type=int, nargs="+", default=[1, 8, 64], help="weights files of a model (1 8 64)")
    out.add_argument("--megabytes", type=int, default=1024, help="MiB of a model (1024)")
    out.add_argument("--large", type=int, default=2048, help="MiB of one more model, of one file; 0: none (2048)")
    out.add_argument("--rounds", type=int, default=5, help="counted runs of each tool (5)")
    out.add_argument("--warmups", type=int, default=1, help="runs before those (1)")
    out.add_argument("--places", nargs="+", choices=sorted(PLACES), default=list(PLACES), help="where to fetch from")
    out.add_argument("--tools", nargs="+", metavar="NAME", help="those alone, for example ours 'hf download'")
    out.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for all files (10 GiB)")
    out.add_argument("--no-kills", dest="kills", action="store_false", help="measure speed and memory only")
    out.add_argument("--json", type=Path, help=f"write the results there (kept ones: {RESULTS}, and their page)")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Print the page; with `--json`, write the results."""
    options = parser().parse_args(argv)
    measuring = Measuring(options)
    measuring.run()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(measuring.results.to_json(), "utf-8")
    print(page.page(measuring.results))
    found = [speed for speed in measuring.results.speeds if speed.tool == OURS]
    return 0 if found or not any(tool == OURS for tool in options.tools or [OURS]) else 1


if __name__ == "__main__":
    sys.exit(main())
