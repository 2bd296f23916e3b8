"""What a run of the benchmark found, as it is kept beside the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.fetch.measured import Run

RESULTS = "tools/benchmarks/fetch/results/fetch.json"
GB, MIB = 1e9, 1 << 20


@dataclass(frozen=True)
class Speed:
    """One tool and one model: each counted run."""

    place: str
    tool: str
    files: int
    size: int
    """Bytes of all files."""
    runs: tuple[Run, ...]

    @property
    def mb_per_second(self) -> tuple[float, float, float]:
        """Lowest, median, highest."""
        found = [self.size / 1e6 / run.seconds for run in self.runs]
        return min(found), median(found), max(found)

    @property
    def cpu_per_gb(self) -> float:
        """Seconds, the median."""
        return median(run.cpu_seconds for run in self.runs) * GB / self.size

    @property
    def peak_mib(self) -> float:
        return max(run.peak_mib for run in self.runs)


@dataclass(frozen=True)
class Killed:
    """A tool that was ended with SIGKILL and started again on the same folder. Bytes as the server sent them."""

    place: str
    tool: str
    files: int
    size: int
    sent_before: int
    sent_after: int
    whole: bool
    """Whether every file was there afterwards, byte for byte."""

    @property
    def again(self) -> float:
        """Share of all bytes that were sent more than once."""
        return max(0.0, (self.sent_before + self.sent_after) / self.size - 1)


@dataclass(frozen=True)
class Results:
    machine: str = ""
    folder: str = ""
    """Kind of file system that was fetched to."""
    versions: dict[str, str] = field(default_factory=dict)
    verifies: dict[str, str] = field(default_factory=dict)
    """By tool: what it holds the bytes against."""
    command: str = ""
    speeds: tuple[Speed, ...] = ()
    kills: tuple[Killed, ...] = ()

    def places(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys([speed.place for speed in self.speeds] + [killed.place for killed in self.kills]))

    def models(self, place: str) -> list[tuple[int, int]]:
        """Number of files and bytes, in the order in which they were measured."""
        return list(dict.fromkeys((found.files, found.size) for found in self.speeds if found.place == place))

    def of(self, place: str, model: tuple[int, int]) -> Iterator[Speed]:
        """Each tool's."""
        return (found for found in self.speeds if found.place == place and (found.files, found.size) == model)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read(path: Path) -> Results | None:
    """None where no run is kept."""
    if not path.exists():
        return None
    written = json.loads(path.read_text("utf-8"))
    speeds = [{**one, "runs": tuple(Run(**run) for run in one["runs"])} for one in written.pop("speeds")]
    kills = [Killed(**one) for one in written.pop("kills")]
    return Results(**written, speeds=tuple(Speed(**one) for one in speeds), kills=tuple(kills))
