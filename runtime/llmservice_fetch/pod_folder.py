"""The pod's own folder of an artifact, with a link for each listed file.

vLLM reads every file in a model's folder: safetensors, code, chat templates. A snapshot in a shared cache may hold
files that were not listed, so vLLM gets links to exactly the blobs of the checked listing.

LINKS/NAME                        a link to the next
LINKS/.files/NAME/REVISION/PATH   a link to CACHE/.../blobs/HASH
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmservice_fetch import folders
from llmservice_fetch.files import RemoteFile
from llmservice_fetch.folders import Folder
from llmservice_fetch.store import Store

_FILES = ".files"


def path(links: Path, name: str, revision: str) -> Path:
    """The folder of an artifact's revision. vLLM separates cached prompts of adapters by path, thus by revision."""
    return links / _FILES / name / revision


def fill(links: Path, name: str, revision: str, store: Store, files: Sequence[RemoteFile]) -> Path:
    """Make the folder hold links to exactly these files; its path. OSError."""
    links.parent.mkdir(parents=True, exist_ok=True)
    blobs = os.path.abspath(store.root / "blobs")  # noqa: PTH100 - must not resolve links
    targets = {file.path: f"{blobs}/{file.blob}" for file in files}
    # The parent is a volume's root; another container of the pod may write below it.
    with folders.opened(links.parent, (links.name, _FILES, name), make=True) as place:
        if not place.is_folder(revision) or dict(_links(place, revision)) != targets:
            _replace(place, revision, targets)
    return path(links, name, revision)


def point(links: Path, name: str, revision: str) -> None:
    """Point the artifact's name to a complete revision."""
    with folders.opened(links.parent, (links.name,)) as place:
        place.link(name, f"{_FILES}/{name}/{revision}")


def _replace(place: Folder, revision: str, targets: dict[str, str]) -> None:
    new, old = f".new-{os.getpid()}", f".old-{os.getpid()}"
    for name in (new, old):
        place.remove(name)
    with place.folder(new, make=True) as folder:
        for file, target in targets.items():
            *parents, name = file.split("/")
            with folder.folder(*parents, make=True) as parent:
                parent.link(name, target)
    if place.stat(revision) is not None:
        place.rename(revision, old)
    place.rename(new, revision)
    place.remove(old)


def _links(place: Folder, name: str, before: str = "") -> Iterator[tuple[str, str | None]]:
    """All entries of a folder by path, with the targets of links."""
    with place.folder(name) as folder:
        for inner in folder.names():
            if folder.is_folder(inner):
                yield from _links(folder, inner, f"{before}{inner}/")
            else:
                yield f"{before}{inner}", folder.target(inner)
