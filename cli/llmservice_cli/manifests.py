"""The LLMServices of a file or a folder, as every command reads them: where each stands, and admitted by this CRD."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubeloop.bounded_yaml import NoYaml, load_all
from llmservice_api.constants import API_VERSION, GROUP, KIND
from llmservice_api.errors import InvalidSpec, Problem

from llmservice_cli.admission.check import problems

from .errors import STDIN, BadInput, is_folder, read_text
from .masking import redactor_of, without_secrets

Json = Mapping[str, Any]

_CORRECT = "Correct the file."
SUFFIXES = (".yaml", ".yml", ".json")
MOST_FILES, MOST_FOLDERS = 1000, 10_000
"""Below one folder."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One LLMService of a file; `where` is the file, with the document's number where there are several."""

    where: str
    manifest: Json

    @contextmanager
    def collecting(self, problems: list[Problem]) -> Iterator[None]:
        """InvalidSpec and BadInput of the block go to `problems` without the manifest's secrets; of a spec with the
        file and the service's name."""
        try:
            yield
        except InvalidSpec as invalid:
            name = _name(self.manifest)
            place = f"{self.where}: {name}: " if name else f"{self.where}: "
            found = [replace(problem, field=f"{place}{problem.field}") for problem in invalid.problems]
        except BadInput as bad:
            found = list(bad.problems)
        else:
            return
        redactor = redactor_of(self.manifest)
        problems += (without_secrets(problem, redactor) for problem in found)


@dataclass(frozen=True, slots=True)
class File:
    """What a file holds: at least one LLMService, and a note for each other object."""

    services: tuple[Manifest, ...]
    notes: tuple[str, ...]


def services(place: str) -> File:
    """Every LLMService of a file (`-`: stdin) or of all files below a folder, not yet admitted. BadInput for a file
    that is none, and where there is no LLMService."""
    found: list[Manifest] = []
    notes: list[str] = []
    for where, manifest in (each for file in _files(place) for each in _objects(file)):
        if manifest.get("kind") == KIND and str(manifest.get("apiVersion", "")).startswith(GROUP):
            found.append(Manifest(where, manifest))
        else:
            notes.append(f"skipped {manifest.get('kind', 'an object without kind')} {_name(manifest)}".rstrip())
    if not found:
        raise BadInput.of(_shown(place), f"it holds no {KIND}.", f"Give a manifest of kind {KIND}, {API_VERSION}.")
    return File(tuple(found), tuple(notes))


def admit(manifest: Json, live: Json | None = None) -> None:
    """InvalidSpec with everything for which an API server with this CRD would refuse the manifest, as a new object or
    as a change of the stored one."""
    if found := problems(manifest, live):
        raise InvalidSpec(found)


def _files(place: str) -> list[str]:
    """The file, or the manifests below a folder by their paths; hidden ones and links to folders are left out."""
    if place == STDIN or not is_folder(place):
        return [place]
    found: list[str] = []
    for number, (folder, folders, names) in enumerate(os.walk(place)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in names if name.endswith(SUFFIXES) and not name.startswith("."))
        found += (str(Path(folder, name)) for name in visible)
        if len(found) > MOST_FILES or number >= MOST_FOLDERS:
            message = f"{place} has more than {MOST_FILES:,} manifests or {MOST_FOLDERS:,} folders below it."
            raise BadInput.of("-f", message, "Name a folder further down.")
    if not found:
        raise BadInput.of("-f", f"{place} holds no file that ends with {', '.join(SUFFIXES)}.", "Name another folder.")
    return sorted(found)


def _objects(place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each object with where it stands; the items of a List one by one, empty documents left out."""
    text = read_text(place, "-f", "Give a manifest, or - for stdin.")
    try:
        documents = load_all(text)
    except NoYaml as error:
        raise BadInput.of("-f", f"{_shown(place)} is no YAML: {error}.", _CORRECT) from None
    for index, document in enumerate(documents, 1):
        if document is None:
            continue
        items = document.get("items") if isinstance(document, dict) and "items" in document else [document]
        for item in items if isinstance(items, list) else [items]:
            where = _shown(place) if len(documents) == 1 else f"{_shown(place)}, document {index}"
            if not isinstance(item, dict):
                raise BadInput.of("-f", f"{where} is no Kubernetes object.", _CORRECT)
            yield where, item


def _name(manifest: Mapping[str, Any]) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _shown(place: str) -> str:
    return "standard input" if place == STDIN else place
