"""The programs that a release is made and verified with, built on first use from their pinned Go modules."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from localcluster.builds import Store, build
from localcluster.errors import ClusterError
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress

# SBOMs are of packages, and syft asks nobody for a newer syft.
SETTINGS = {"SYFT_CHECK_FOR_APP_UPDATE": "false", "SYFT_FILE_METADATA_SELECTION": "none"}


@dataclass(frozen=True)
class Tools:
    """Where the programs lie, and the environment that they run in."""

    folders: tuple[Path, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def path(self) -> str:
        return os.pathsep.join([*map(str, self.folders), self.environment.get("PATH", os.defpath)])

    def run(self, *command: str, cwd: Path | None = None, more: Mapping[str, str] | None = None) -> str:
        """The command's standard output; its failure is a ClusterError with the end of what it said."""
        return self.output(*command, cwd=cwd, more=more).decode()

    def output(self, *command: str, cwd: Path | None = None, more: Mapping[str, str] | None = None) -> bytes:
        """Standard output as bytes."""
        with self._started(command, cwd, more) as printed:
            return printed.read()

    def digest(self, *command: str) -> str:
        """The SHA-256 of standard output, which may be gigabytes."""
        with self._started(command, None, None) as printed:
            digest = hashlib.sha256()
            while chunk := printed.read(1 << 20):
                digest.update(chunk)
            return digest.hexdigest()

    @contextmanager
    def _started(self, command: Sequence[str], cwd: Path | None, more: Mapping[str, str] | None) -> Iterator[IO[bytes]]:
        environment = {**self.environment, **SETTINGS, **(more or {}), "PATH": self.path}
        program = shutil.which(command[0], path=self.path)
        if program is None:
            raise ClusterError(f"{command[0]} is not on the PATH")
        with tempfile.TemporaryFile() as errors:
            with subprocess.Popen(
                (program, *command[1:]), cwd=cwd, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            ) as child:  # fmt: skip
                assert child.stdout is not None
                yield child.stdout
            errors.seek(0)
            if child.returncode != 0:
                said = errors.read().decode(errors="replace")
                raise ClusterError(f"{shown(command)} failed", last_lines(said))


@contextmanager
def answering(
    name: str, command: Sequence[str], tools: Tools, probe: Callable[[], bool], log: Path, timeout: float = 60
) -> Iterator[None]:
    """A server that answers, for the time of the block."""
    environment = {**tools.environment, "PATH": tools.path, "OTEL_TRACES_EXPORTER": "none"}
    with log.open("wb") as written:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, env=environment
        )
    try:
        deadline = time.monotonic() + timeout
        while not probe():
            if server.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"{name} does not answer", f"end of {log}:\n    {last_lines(log.read_text())}")
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def shown(command: Sequence[str]) -> str:
    """The command's first words: enough to know it, and none of its options."""
    words = []
    for word in command[:4]:
        if word.startswith("-"):
            break
        words.append(word)
    return " ".join(words)


def last_lines(text: str, count: int = 12) -> str:
    """The end of what a program said."""
    return "\n    ".join(text.strip().splitlines()[-count:])


def release_tools(progress: Progress, groups: Collection[Group], environment: Mapping[str, str] = os.environ) -> Tools:
    """The programs of the groups; minutes of compiling where the user's cache does not have them yet."""
    store = Store(cache_root(environment, Path.home()))
    return Tools(tuple(build(store, group, environment, progress) for group in groups), dict(environment))
