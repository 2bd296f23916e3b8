"""`python -m llmservice_fetch fetch`: the process that fetches a server's artifacts.

Standard output: one JSON document per line, for the supervisor. Standard error: the log. Neither holds credentials.

With spec.model.cache.verify: Hash cached files are compared with the published hashes before they are served. Hashes
come from the origin. Where it is unreachable, the cached listing is used, which anyone who writes the cache can
change together with the content: this still detects a broken disk, but no attack.

vLLM reads every file in a model's folder: safetensors, code, chat templates. A snapshot in a shared cache may hold
files that were not listed, so vLLM gets the pod's own folder, with links to exactly the blobs of the checked listing:

LINKS/NAME                        a link to the next
LINKS/.files/NAME/REVISION/PATH   a link to CACHE/.../blobs/HASH
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from llmservice_runtime.contract import (
    DRAFT_ARTIFACT,
    MODEL_ARTIFACT,
    Failure,
    FailureReason,
    Phase,
    Transfer,
    TransferStep,
)
from llmservice_runtime.preflight import model_checks, model_files
from llmservice_runtime.redact import Redacted, Redactor, log
from llmservice_runtime.supervisor.vllm_process import Flags, read_flags

from llmservice_fetch import failed, folders, prune, transfer, uses
from llmservice_fetch.failed import HTTPStatusError, Unreachable
from llmservice_fetch.files import Digest, Listing, Origin, RemoteFile, is_inside, select, total
from llmservice_fetch.folders import Folder
from llmservice_fetch.origins import origin_of, schemes
from llmservice_fetch.store import Store, exclusive
from llmservice_fetch.transfer import Download, Meter, RetryPolicy, retrying

_FILES = ".files"


def pod_folder(links: Path, name: str, revision: str) -> Path:
    """The folder of an artifact's revision. vLLM separates cached prompts of adapters by path, thus by revision."""
    return links / _FILES / name / revision


def fill_pod_folder(links: Path, name: str, revision: str, store: Store, files: Sequence[RemoteFile]) -> Path:
    """Make the folder hold links to exactly these files; its path. OSError."""
    links.parent.mkdir(parents=True, exist_ok=True)
    blobs = os.path.abspath(store.root / "blobs")  # noqa: PTH100 - must not resolve links
    targets = {file.path: f"{blobs}/{file.blob}" for file in files}
    # The parent is a volume's root; another container of the pod may write below it.
    with folders.opened(links.parent, (links.name, _FILES, name), make=True) as place:
        if not place.is_folder(revision) or dict(_links(place, revision)) != targets:
            _replace(place, revision, targets)
    return pod_folder(links, name, revision)


def point_pod_folder(links: Path, name: str, revision: str) -> None:
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


SIZE, HASH = "size", "hash"
# Disks and network storage are faster with concurrent reads; a core hashes about 1 GB/s.
_WORKERS = 4
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Verification:
    """Verifies the cached files of one artifact."""

    origin: Origin
    store: Store
    meter: Meter
    log: Callable[[str], None]
    policy: RetryPolicy
    is_fresh: bool
    """Whether the listing is from the origin and not from the cache."""

    def run(self, files: Sequence[RemoteFile]) -> None:
        """Hash all cached files. Damaged ones are removed and fetched again; FetchFailed where that is impossible."""
        there = [file for file in files if self.store.has(file)]
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
            hashes = list(pool.map(self._digest, there))
            checked = [(file, digest) for file, digest in zip(there, hashes, strict=True) if digest]
            results = list(pool.map(lambda pair: self._is_sound(*pair), checked))
        if len(checked) < len(there):
            self.log(f"{self.origin.uri} publishes no hash of {len(there) - len(checked)} files: only sizes compared")
        if not self.is_fresh:
            self.log(f"{self.origin.uri} is unreachable: the cache was compared with its own listing")
        damaged = [file.path for (file, _), sound in zip(checked, results, strict=True) if not sound]
        if damaged and not self.is_fresh:
            raise failed.FetchFailed(
                FailureReason.MODEL_CORRUPT,
                f"The model cache {self.store.root} holds other contents than were published of {_names(damaged)}, "
                f"and {self.origin.uri} cannot be reached to fetch them again.",
                "Make the origin reachable for one start, or put the files into the cache of spec.model.cache again.",
            )
        if damaged:
            self.log(
                f"the cache held other contents than {self.origin.uri} published: {_names(damaged)}; fetching them"
            )

    def _digest(self, file: RemoteFile) -> Digest | None:
        if not self.is_fresh:
            return file.digest
        return retrying(lambda: self.origin.digest(file), self.policy, self.log, self.origin.uri)

    def _is_sound(self, file: RemoteFile, digest: Digest) -> bool:
        with failed.storage(self.store.root), self.store.open("blobs") as blobs:
            with FileIO(blobs.open(file.blob, os.O_RDONLY)) as source:
                hasher = digest.start(file.size)
                self._feed(source, hasher)
                if hasher.hexdigest() == digest.value:
                    return True
                read = os.fstat(source.fileno())
            found = blobs.stat(file.blob)
            # Another pod may have replaced it by the right content.
            if self.is_fresh and found is not None and (found.st_ino, found.st_dev) == (read.st_ino, read.st_dev):
                blobs.remove(file.blob)
            return False

    def _feed(self, source: FileIO, hasher: hashlib._Hash) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while count := source.readinto(buffer):
            hasher.update(buffer[:count])
            self.meter.add(count)


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


@dataclass(frozen=True)
class FetchOptions:
    fetch: tuple[str, ...]
    cache: Path
    links: Path
    weights: str = "auto"
    context_extension: str | None = None
    args: tuple[str, ...] = ()
    verify: str = SIZE
    service: str = ""
    """LLMService of this pod; without it nothing is pruned."""
    prune_after_hours: int = uses.DEFAULT_HOURS
    pod: str = ""


def main(options: FetchOptions) -> int:
    """Fetch, check and link; exit code 0, or 1 after writing a failure document."""
    redactor = Redactor(os.environ)
    sys.stdout = Redacted(sys.stdout, redactor)
    sys.stderr = Redacted(sys.stderr, redactor)
    try:
        FetchRun(options, os.environ, redactor.hide, emit).run()
    except failed.FetchFailed as error:
        emit({"failure": json.loads(error.failure.to_json())})
        return 1
    return 0


def emit(document: Mapping[str, object]) -> None:
    """Write one JSON document as a line; atomic between threads."""
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Artifact:
    """One artifact with its listing and the selected files."""

    name: str
    origin: Origin
    store: Store
    listing: Listing
    small: list[RemoteFile]
    weights: list[RemoteFile]
    links: Path
    is_fresh: bool
    """Whether the listing is from the origin and not from the cache."""

    @property
    def files(self) -> list[RemoteFile]:
        """All selected files."""
        return self.small + self.weights

    @property
    def is_there(self) -> bool:
        """Whether all files are in the cache."""
        return not self.store.missing(self.files)

    @property
    def folder(self) -> Path:
        """The pod's folder for it, complete or not."""
        return pod_folder(self.links, self.name, self.listing.revision)

    def link(self, files: Sequence[RemoteFile]) -> None:
        """Link files into the cache's snapshot and into the pod's folder."""
        with failed.storage(self.store.root):
            self.store.link(self.listing.revision, files)
        with failed.storage(self.links):
            fill_pod_folder(self.links, self.name, self.listing.revision, self.store, files)


class FetchRun:
    """Fetches all artifacts of one server: listings, configurations, checks, then the weights."""

    def __init__(
        self,
        options: FetchOptions,
        environment: Mapping[str, str],
        hide: Callable[[str], None],
        emit: Callable[[Mapping[str, object]], None],
        policy: RetryPolicy | None = None,
    ) -> None:
        self._options, self._environment, self._hide, self._emit = options, environment, hide, emit
        self._policy = policy or RetryPolicy()
        self._flags: Flags = read_flags(options.args)

    def run(self) -> None:
        """Run all steps. Raises FetchFailed."""
        artifacts = [self._listed(*_named(text)) for text in self._options.fetch]
        self._prune()
        self._verify(artifacts)
        absent = [artifact for artifact in artifacts if not artifact.is_there]
        with ExitStack() as locks:
            # In sorted order, to avoid deadlocks between processes.
            stores = {artifact.store.root: artifact for artifact in absent}
            held = {root: locks.enter_context(self._lock(stores[root])) for root in sorted(stores)}
            downloads = [self._download(artifact, alone=held[artifact.store.root]) for artifact in absent]
            for artifact, download in zip(absent, downloads, strict=True):
                self._fetch(artifact, download, artifact.small, TransferStep.LISTING)
            self._check_configurations(artifacts)
            for artifact, download in zip(absent, downloads, strict=True):
                download.check_space(artifact.weights)
                self._fetch(artifact, download, artifact.files, TransferStep.DOWNLOADING)
        for artifact in artifacts:
            self._finish(artifact)

    def _listed(self, name: str, uri: str) -> Artifact:
        """The artifact with its listing. A complete pinned revision needs no server.

        A complete cached branch is used where its server is unreachable.
        """
        origin = self._origin(name, uri)
        store = Store(self._options.cache, origin.folder)
        known = store.recall(origin.asked, origin.pinned)
        self._emit({"transfer": Transfer(name, TransferStep.LISTING).to_document()})
        kept = self._artifact(name, origin, store, known, is_fresh=False) if known else None
        kept = kept if kept and kept.is_there else None
        if kept and origin.pinned and self._options.verify != HASH:
            return kept
        # With a usable revision in the cache, do not wait long for the server.
        policy = replace(self._policy, attempts=2) if kept else self._policy
        try:
            listing = retrying(origin.listing, policy, log, origin.uri)
        except failed.FetchFailed as error:
            if kept is None or not isinstance(error.__cause__, (Unreachable, HTTPStatusError)):
                raise
            log(f"{error} Using {kept.listing.revision} from the cache.")
            return kept
        with failed.storage(store.root):
            store.prepare()
            store.remember(origin, listing)
        return self._artifact(name, origin, store, listing, is_fresh=True)

    def _artifact(self, name: str, origin: Origin, store: Store, listing: Listing, *, is_fresh: bool) -> Artifact:
        # Before the files are looked up: see `uses`.
        uses.record(store, self._use(name, origin, listing, pod=self._options.pod or os.uname().nodename), log)
        small, weights = select(listing.files, self._flags.load_format if name == MODEL_ARTIFACT else "auto")
        return Artifact(name, origin, store, listing, small, weights, self._options.links, is_fresh)

    def _use(self, name: str, origin: Origin, listing: Listing, pod: str = "") -> uses.Use:
        hours = self._options.prune_after_hours
        return uses.Use(name, origin.asked, listing.revision, self._options.service, pod, hours)

    def _prune(self) -> None:
        """Prune the cache, before the download needs space."""
        if self._options.service:
            pruned = prune.prune(self._options.cache, self._options.prune_after_hours, log)
            self._emit({"cache": pruned.room.to_document()})

    def _verify(self, artifacts: Sequence[Artifact]) -> None:
        """Verify cached files; downloads are verified as they arrive."""
        for artifact in artifacts if self._options.verify == HASH else ():
            counted = transfer.Meter(artifact.name)
            there = total(artifact.files) - total(artifact.store.missing(artifact.files))
            counted.begin(TransferStep.VERIFYING, 0, there)
            with transfer.reporting(counted.snapshot, self._transfer):
                Verification(artifact.origin, artifact.store, counted, log, self._policy, artifact.is_fresh).run(
                    artifact.files
                )

    def _origin(self, name: str, uri: str) -> Origin:
        field = failed.field_of(name, uri)
        origin = origin_of(uri, field, self._environment, self._hide)
        if origin is None:
            raise failed.not_found(field, f"{uri!r} cannot be fetched.", f"It must be {schemes()}.")
        return origin

    @contextmanager
    def _lock(self, artifact: Artifact) -> Iterator[bool]:
        """Lock the artifact's store; False without file locks. Reports another process's progress while waiting."""

        def waiting() -> AbstractContextManager[None]:
            return transfer.reporting(lambda: transfer.progress_of_other(artifact.store, artifact.name), self._transfer)

        store = artifact.store
        with failed.storage(store.root), exclusive(store.open_lock, store.root, log, waiting) as alone:
            yield alone

    def _download(self, artifact: Artifact, *, alone: bool) -> Download:
        return Download(
            artifact.origin,
            artifact.listing,
            artifact.store,
            transfer.Meter(artifact.name),
            log,
            self._policy,
            suffix="" if alone else f".{os.uname().nodename}-{os.getpid()}",
        )

    def _fetch(self, artifact: Artifact, download: Download, files: Sequence[RemoteFile], step: TransferStep) -> None:
        """Fetch some of the files. Progress is that of all of them, so that it never decreases."""
        everything = artifact.files
        missing = artifact.store.missing(files)
        done = sum(artifact.store.bytes_of(file) for file in everything)
        if missing:
            where = f"{artifact.origin.uri} ({artifact.listing.revision})"
            log(f"{where}: {len(missing)} files to fetch; {done} of {total(everything)} bytes present")
        download.meter.begin(step, done, total(everything))

        def emit(reached: Transfer) -> None:
            self._transfer(reached)
            transfer.save_progress(artifact.store, reached)

        with transfer.reporting(download.meter.snapshot, emit):
            download.fetch(missing)
        artifact.link(files)

    def _check_configurations(self, artifacts: Sequence[Artifact]) -> None:
        """Check configurations before the weights, which may be hundreds of gigabytes."""
        folders = {artifact.name: artifact.folder for artifact in artifacts}
        checks = model_checks.of_configuration(
            self._flags,
            folders.get(MODEL_ARTIFACT),
            folders.get(DRAFT_ARTIFACT),
            self._options.weights,
            self._options.context_extension,
        )
        _raise_first(checks)

    def _finish(self, artifact: Artifact) -> None:
        self._transfer(
            Transfer(artifact.name, TransferStep.VERIFYING, total(artifact.files), total(artifact.files) or None)
        )
        artifact.link(artifact.files)
        folder = artifact.folder
        if artifact.name in (MODEL_ARTIFACT, DRAFT_ARTIFACT):
            needed = artifact.name != MODEL_ARTIFACT or self._flags.load_format != "dummy"
            _raise_first(model_files.check_files(folder, needs_weights=needed))
        with failed.storage(self._options.links):
            point_pod_folder(artifact.links, artifact.name, artifact.listing.revision)
        if self._options.service and artifact.name in (MODEL_ARTIFACT, DRAFT_ARTIFACT):
            uses.record(artifact.store, self._use(artifact.name, artifact.origin, artifact.listing), log)
        log(f"{artifact.origin.uri} is complete: {folder}")
        self._emit({"artifact": artifact.name, "path": str(folder)})

    def _transfer(self, reached: Transfer) -> None:
        self._emit({"transfer": reached.to_document()})


def _named(text: str) -> tuple[str, str]:
    name, separator, uri = text.partition("=")
    if not separator or not is_inside(name) or "/" in name:
        raise failed.not_found("--fetch", f"--fetch={text} is not NAME=URI.", "Example: --fetch=model=hf://ORG/NAME.")
    return name, uri


def _raise_first(failures: Iterator[Failure]) -> None:
    failure = next(failures, None)
    if failure is not None:
        raise failed.FetchFailed.of(replace(failure, phase=Phase.FETCHING))
