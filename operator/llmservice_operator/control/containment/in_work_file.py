"""The two small files behind `in_work`: slots that are overwritten in place, and the suspects of earlier deaths.

Both are written without fsync: they are to survive the process and its container, and not the node. Whatever is read
is checked, since anything may have happened to a file: what does not pass counts as empty, with a log line.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from llmservice_operator.api.service import Key

logger = logging.getLogger(__name__)

SLOT, SLOTS = 512, 32
"""Bytes of a slot, for a namespace and a name of 316 characters at most; and as many as workers and state pollers."""
_HEAD = Struct("<IH")
_EMPTY = bytes(_HEAD.size)
_LONGEST = 64 * 1024


class Activity(StrEnum):
    """What is done about a service."""

    RECONCILE = "reconcile"
    STATE = "state"


class Work(NamedTuple):
    """One of them, about one service."""

    activity: Activity
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


class Suspect(NamedTuple):
    """What was in work when a process died, as it was then."""

    uid: str
    generation: int
    alone: int = 0
    """Deaths in a row at which nothing else was in work."""

    def is_of(self, uid: str, generation: int) -> bool:
        """Whether the service is still as it was."""
        return (self.uid, self.generation) == (uid, generation)


class Death(NamedTuple):
    """What an earlier process left."""

    in_work: tuple[tuple[Work, Suspect], ...]
    suspects: Mapping[Work, Suspect]


Word = Annotated[str, StringConstraints(max_length=253)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    activity: Annotated[Activity, Field(strict=False)]
    namespace: Word
    name: Word
    uid: Word
    generation: Annotated[int, Field(ge=0, lt=2**63)]
    alone: Annotated[int, Field(ge=0, le=1000)] = 0

    def pair(self) -> tuple[Work, Suspect]:
        return Work(self.activity, self.namespace, self.name), Suspect(self.uid, self.generation, self.alone)


class _Suspects(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Annotated[str, StringConstraints(max_length=1024)]
    suspects: Annotated[list[_Entry], Field(max_length=4 * SLOTS)]


class InWorkFile:
    """The files of one folder, for one process."""

    slots = SLOTS

    def __init__(self, folder: Path, version: str, descriptor: int) -> None:
        self._folder, self._version, self._descriptor = folder, version, descriptor
        self._is_kept = False

    @classmethod
    def open(cls, folder: Path, version: str) -> tuple[InWorkFile, Death]:
        """With what an earlier process of the same version left there. OSError where it cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "in-work"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        before = _suspects_of(folder / "suspects.json", version)
        # Of another version nothing counts: what took that one need not take this one.
        in_work = () if before is None else tuple(_slots_of(os.pread(descriptor, SLOT * SLOTS, 0)))
        os.ftruncate(descriptor, SLOT * SLOTS)
        return cls(folder, version, descriptor), Death(in_work, before or {})

    def write(self, slot: int, work: Work, uid: str, generation: int) -> None:
        """This is in work."""
        body = orjson.dumps([work.activity, work.namespace, work.name, uid, generation])
        if len(body) <= SLOT - _HEAD.size:
            self._put(slot, _HEAD.pack(zlib.crc32(body), len(body)) + body)

    def clear(self, slot: int) -> None:
        """It is not any more."""
        self._put(slot, _EMPTY)

    def empty(self) -> None:
        """Nothing is in work."""
        for slot in range(SLOTS):
            self.clear(slot)

    def keep(self) -> None:
        """Whatever is in work now is to be found by the next process."""
        self._is_kept = True

    def save(self, suspects: Mapping[Work, Suspect]) -> None:
        """As a whole: a file that was half written is never read."""
        entries = [{**work._asdict(), **suspect._asdict()} for work, suspect in suspects.items()]
        path, new = self._folder / "suspects.json", self._folder / "suspects.new"
        try:
            new.write_bytes(orjson.dumps({"version": self._version, "suspects": entries[-4 * SLOTS :]}))
            new.replace(path)
        except OSError as error:
            logger.warning("cannot write %s: %s", path, error)

    def _put(self, slot: int, content: bytes) -> None:
        if self._is_kept:
            return
        try:
            os.pwrite(self._descriptor, content, slot * SLOT)
        except OSError as error:
            self._is_kept = True
            logger.warning("cannot record what is in work any more: %s", error)


def _suspects_of(path: Path, version: str) -> Mapping[Work, Suspect] | None:
    """None where another version wrote it; empty where there is none, or nothing that can be read."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        logger.warning("cannot read %s, going on without: %s", path, error)
        return {}
    try:
        found = _Suspects.model_validate(_json(text))
    except (ValidationError, ValueError):
        logger.warning("%s is damaged, going on without", path)
        return {}
    return dict(entry.pair() for entry in found.suspects) if found.version == version else None


def _slots_of(page: bytes) -> Iterator[tuple[Work, Suspect]]:
    damaged = 0
    for at in range(0, len(page) - _HEAD.size + 1, SLOT):
        crc, length = _HEAD.unpack_from(page, at)
        if (crc, length) == (0, 0):
            continue
        body = page[at + _HEAD.size : at + _HEAD.size + length]
        try:
            if length > SLOT - _HEAD.size or zlib.crc32(body) != crc:
                raise ValueError
            names = ("activity", "namespace", "name", "uid", "generation")
            yield _Entry.model_validate(dict(zip(names, _json(body), strict=True))).pair()
        except (ValidationError, ValueError, TypeError):
            damaged += 1
    if damaged:
        logger.warning("%d slots of what was in work are damaged, going on without", damaged)


def _json(text: bytes) -> Any:
    """ValueError where it is none; orjson ends at a depth of its own."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    return orjson.loads(text)
