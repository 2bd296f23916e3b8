"""The API server's audit log, followed while it grows and is rotated: what one user asked."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """One request that was answered."""

    verb: str
    resource: str
    code: int
    name: str

    @property
    def is_write(self) -> bool:
        """Of something that is no lease: a leader renews that for ever."""
        return self.verb in WRITES and self.resource != "leases"


class AuditTail:
    """What came since the last look. `follow` has to run: of a log that is rotated twice between looks, one is lost."""

    def __init__(self, path: Path, user: str, is_ours: Callable[[str], bool]) -> None:
        """Of what one user asked, only what is of no namespace, or of ours."""
        self._path, self._user, self._is_ours = path, user.encode(), is_ours
        self._file: BinaryIO = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""
        self._unseen: list[Request] = []

    async def follow(self) -> None:
        """For ever, often enough for every rotation."""
        while True:
            self.take_in()
            await asyncio.sleep(1)

    def new(self) -> list[Request]:
        """Since this was last asked, or since the tail was made."""
        self.take_in()
        found, self._unseen = self._unseen, []
        return found

    def take_in(self) -> None:
        """Before the log is rotated once more."""
        self._unseen += [request for line in self._lines() if (request := self._read(line)) is not None]

    def close(self) -> None:
        self._file.close()

    def _lines(self) -> Iterator[bytes]:
        while True:
            # Asked before the read: what a rotation leaves behind is complete.
            rotated = self._path.stat().st_ino != _inode(self._file)
            *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
            yield from lines
            if not rotated:
                return
            self._file.close()
            self._file = self._path.open("rb")

    def _read(self, line: bytes) -> Request | None:
        if self._user not in line:
            return None
        entry = json.loads(line)
        if entry["user"]["username"].encode() != self._user or entry["stage"] != "ResponseComplete":
            return None
        target = entry.get("objectRef", {})
        if "namespace" in target and not self._is_ours(target["namespace"]):
            return None
        resource = target.get("resource", "") + (f"/{target['subresource']}" if "subresource" in target else "")
        return Request(entry["verb"], resource, entry["responseStatus"]["code"], target.get("name", ""))


def _inode(file: BinaryIO) -> int:
    return Path(f"/proc/self/fd/{file.fileno()}").stat().st_ino


def counted(requests: list[Request]) -> Counter[str]:
    return Counter(f"{request.verb} {request.resource}" for request in requests)
