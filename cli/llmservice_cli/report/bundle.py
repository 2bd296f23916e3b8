"""The bundle itself: files without secrets, bounded, with a README.md, as one .tar.gz."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmservice_runtime.bounded_json import clean

from llmservice_cli.documents import written

from .redaction import Cleaner

# What is in a bundle before secrets are taken out, as values.

Read = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: an object, written as YAML, or a text. `path` is below the bundle's folder."""

    path: str
    what: str
    content: Any


@dataclass(frozen=True, slots=True)
class Planned:
    """A text that is read once it is known that a bundle is written."""

    namespace: str
    """In which it needs a right."""
    path: str
    what: str
    read: Read


@dataclass(frozen=True, slots=True)
class Gap:
    """What could not be read, or was left out, and why."""

    what: str
    why: str


@dataclass(slots=True)
class Material:
    """Filled while it is collected."""

    entries: list[Entry] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


MOST_BYTES = 32 * 2**20
"""Of all files together, before they are compressed."""
README = "README.md"
_UNSAFE = re.compile(r"[^\w./-]|\.\.")
_ROOM = 64 * 1024
"""Bytes for the README.md."""


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is written."""

    path: str
    what: str
    content: bytes


def files(entries: Sequence[Entry], gaps: list[Gap], most: int = MOST_BYTES) -> list[File]:
    """All without secrets, those after the limit cut to what has room, which is added to `gaps`."""
    texts = [entry.content for entry in entries if isinstance(entry.content, str)]
    cleaner = Cleaner([entry.content for entry in entries if not isinstance(entry.content, str)], texts)
    left = most - _ROOM
    found = []
    for entry in entries:
        if left <= 0:
            gaps.append(Gap(entry.path, "left out: the bundle has no room for more"))
            continue
        is_text = isinstance(entry.content, str)
        text = cleaner.text(entry.content) if is_text else written("yaml", cleaner.object(entry.content))
        content = clean(text).encode(errors="replace")
        if len(content) > left:
            gaps.append(Gap(entry.path, f"cut to {left:,} of {len(content):,} bytes: the bundle has no room for more"))
            content = content[-left:] if is_text else b""
        if content or not is_text:
            found.append(File(_UNSAFE.sub("_", entry.path), entry.what, content))
        left -= len(content)
    for index, gap in enumerate(gaps):
        gaps[index] = Gap(clean(cleaner.text(gap.what)), clean(cleaner.text(gap.why)))
    return found


def readme(title: str, found: Iterable[File], gaps: Iterable[Gap]) -> str:
    """What each file is, what is missing, and what was taken out."""
    rows = "".join(f"| {file.path} | {file.what} | {len(file.content):,} |\n" for file in found)
    missing = "".join(f"- {gap.what}: {gap.why}\n" for gap in gaps) or "- nothing\n"
    text = (
        f"# {title}\n\n"
        "Made by `llmservice report`. Values that look like secrets are replaced by `***`; Secrets were not read.\n"
        "Logs may still hold what programs write: names, addresses, prompts.\n\n"
        f"| file | what | bytes |\n|-|-|-:|\n{rows}\n"
        f"## What is missing\n\n{missing}"
    )
    return text if len(text.encode()) <= _ROOM else text.encode()[:_ROOM].decode(errors="ignore") + "\n(cut)\n"


def archive(folder: str, found: Iterable[File], moment: float) -> bytes:
    """A .tar.gz in which all files are in one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for file in found:
            member = tarfile.TarInfo(f"{folder}/{file.path}")
            member.size, member.mtime, member.mode = len(file.content), int(moment), 0o600
            bundle.addfile(member, io.BytesIO(file.content))
    return buffer.getvalue()
