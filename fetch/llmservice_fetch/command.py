"""`python -m llmservice_fetch fetch`: what runs as a process of its own before vLLM starts.

Standard output is for the supervisor: one JSON document a line. Standard error is for people. Neither holds
credentials.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from llmservice_runtime.contract import DRAFT_ARTIFACT, MODEL_ARTIFACT, Failure, Phase, Transfer, TransferStep
from llmservice_runtime.preflight import model_checks, model_files
from llmservice_runtime.redact import Redacted, Redactor
from llmservice_runtime.supervisor.vllm_process import Flags, read_flags

from llmservice_fetch import failed, meter, pod_folder, prune, uses, verify
from llmservice_fetch.errors import Refused, Unreachable
from llmservice_fetch.files import Listing, Origin, RemoteFile, is_inside, total
from llmservice_fetch.lock import exclusive
from llmservice_fetch.origins import origin_of
from llmservice_fetch.selection import select
from llmservice_fetch.store import Store
from llmservice_fetch.transfer import Download, Patience, patiently


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    fetch: tuple[str, ...]
    cache: Path
    links: Path
    weights: str = "auto"
    context_extension: str | None = None
    args: tuple[str, ...] = ()
    verify: str = verify.SIZE
    service: str = ""
    """Whose pod this is, for the rule of `prune`; without it nothing is pruned."""
    prune_after_hours: int = uses.DEFAULT_HOURS
    pod: str = ""


def main(wanted: Wanted) -> int:
    """Fetch, check, link, and say so; 1 with a failure document where that did not work."""
    redactor = Redactor(os.environ)
    sys.stdout = Redacted(sys.stdout, redactor)
    sys.stderr = Redacted(sys.stderr, redactor)
    try:
        Fetching(wanted, os.environ, redactor.hide, tell).run()
    except failed.FetchFailed as error:
        tell({"failure": json.loads(error.failure.to_json())})
        return 1
    return 0


def tell(document: Mapping[str, object]) -> None:
    """One line, whole even when threads talk at once."""
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line of the log."""
    sys.stderr.write(f"[llmservice] {text}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Artifact:
    """One thing to fetch, once it is known what it consists of."""

    name: str
    origin: Origin
    store: Store
    listing: Listing
    small: list[RemoteFile]
    weights: list[RemoteFile]
    links: Path
    is_fresh: bool
    """Whether the origin told the listing just now."""

    @property
    def files(self) -> list[RemoteFile]:
        """All that is needed of it."""
        return self.small + self.weights

    @property
    def is_there(self) -> bool:
        """Whether nothing is left to fetch."""
        return not self.store.missing(self.files)

    @property
    def folder(self) -> Path:
        """Where this pod finds it, whole or not."""
        return pod_folder.path(self.links, self.name, self.listing.revision)

    def link(self, files: Sequence[RemoteFile]) -> None:
        """Into the cache's own folder for the revision, and into the pod's."""
        with failed.storage(self.store.root):
            self.store.link(self.listing.revision, files)
        with failed.storage(self.links):
            pod_folder.fill(self.links, self.name, self.listing.revision, self.store, files)


class Fetching:
    """All artifacts of one server: listed, configurations first, checked, then the weights."""

    def __init__(
        self,
        wanted: Wanted,
        environment: Mapping[str, str],
        hide: Callable[[str], None],
        tell: Callable[[Mapping[str, object]], None],
        patience: Patience | None = None,
    ) -> None:
        self._wanted, self._environment, self._hide, self._tell = wanted, environment, hide, tell
        self._patience = patience or Patience()
        self._flags: Flags = read_flags(wanted.args)

    def run(self) -> None:
        """The whole of it. Raises FetchFailed."""
        artifacts = [self._listed(*_named(text)) for text in self._wanted.fetch]
        self._prune()
        self._verify(artifacts)
        absent = [artifact for artifact in artifacts if not artifact.is_there]
        with ExitStack() as locks:
            # In the order of their names, so that two processes never wait for each other.
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
        """What it consists of. A complete revision needs no server, nor does a branch whose server is away."""
        origin = self._origin(name, uri)
        store = Store(self._wanted.cache, origin.folder)
        known = store.recall(origin.asked, origin.pinned)
        self._tell({"transfer": Transfer(name, TransferStep.LISTING).to_document()})
        kept = self._artifact(name, origin, store, known, is_fresh=False) if known else None
        kept = kept if kept and kept.is_there else None
        if kept and origin.pinned and self._wanted.verify != verify.HASH:
            return kept
        # Who has something to serve does not wait long for news.
        patience = replace(self._patience, attempts=2) if kept else self._patience
        try:
            listing = patiently(origin.listing, patience, say, origin.uri)
        except failed.FetchFailed as error:
            if kept is None or not isinstance(error.__cause__, (Unreachable, Refused)):
                raise
            say(f"{error} Going on with {kept.listing.revision}, which is in the cache.")
            return kept
        with failed.storage(store.root):
            store.prepare()
            store.remember(origin, listing)
        return self._artifact(name, origin, store, listing, is_fresh=True)

    def _artifact(self, name: str, origin: Origin, store: Store, listing: Listing, *, is_fresh: bool) -> Artifact:
        # Before anybody looks what is there: see `uses`.
        uses.record(store, self._use(name, origin, listing, pod=self._wanted.pod or os.uname().nodename), say)
        small, weights = select(listing.files, self._flags.load_format if name == MODEL_ARTIFACT else "auto")
        return Artifact(name, origin, store, listing, small, weights, self._wanted.links, is_fresh)

    def _use(self, name: str, origin: Origin, listing: Listing, pod: str = "") -> uses.Use:
        hours = self._wanted.prune_after_hours
        return uses.Use(name, origin.asked, listing.revision, self._wanted.service, pod, hours)

    def _prune(self) -> None:
        """Before the download, which needs the room."""
        if self._wanted.service:
            pruned = prune.prune(self._wanted.cache, self._wanted.prune_after_hours, say)
            self._tell({"cache": pruned.room.to_document()})

    def _verify(self, artifacts: Sequence[Artifact]) -> None:
        """What was there before; what is fetched is verified as it comes."""
        for artifact in artifacts if self._wanted.verify == verify.HASH else ():
            counted = meter.Meter(artifact.name)
            there = total(artifact.files) - total(artifact.store.missing(artifact.files))
            counted.begin(TransferStep.VERIFYING, 0, there)
            with meter.telling(counted.look, self._transfer):
                verify.Verification(
                    artifact.origin, artifact.store, counted, say, self._patience, artifact.is_fresh
                ).run(artifact.files)

    def _origin(self, name: str, uri: str) -> Origin:
        field = failed.field_of(name, uri)
        origin = origin_of(uri, field, self._environment, self._hide)
        if origin is None:
            raise failed.not_found(field, f"{uri!r} is nothing to fetch.", "It must be hf://, s3://, gs:// or az://.")
        return origin

    @contextmanager
    def _lock(self, artifact: Artifact) -> Iterator[bool]:
        """While another process downloads, its progress is told as ours."""

        def waiting() -> AbstractContextManager[None]:
            return meter.telling(lambda: meter.found(artifact.store, artifact.name), self._transfer)

        store = artifact.store
        with failed.storage(store.root), exclusive(store.open_lock, store.root, say, waiting) as alone:
            yield alone

    def _download(self, artifact: Artifact, *, alone: bool) -> Download:
        return Download(
            artifact.origin,
            artifact.listing,
            artifact.store,
            meter.Meter(artifact.name),
            say,
            self._patience,
            suffix="" if alone else f".{os.uname().nodename}-{os.getpid()}",
        )

    def _fetch(self, artifact: Artifact, download: Download, files: Sequence[RemoteFile], step: TransferStep) -> None:
        """Some of the files; the progress is that of all of them, so that it never runs backwards."""
        everything = artifact.files
        missing = artifact.store.missing(files)
        done = sum(artifact.store.bytes_of(file) for file in everything)
        if missing:
            where = f"{artifact.origin.uri} ({artifact.listing.revision})"
            say(f"{where}: {len(missing)} files to fetch; {done} of {total(everything)} bytes are there")
        download.meter.begin(step, done, total(everything))

        def tell(transfer: Transfer) -> None:
            self._transfer(transfer)
            meter.leave(artifact.store, transfer)

        with meter.telling(download.meter.look, tell):
            download.fetch(missing)
        artifact.link(files)

    def _check_configurations(self, artifacts: Sequence[Artifact]) -> None:
        """What can be told before the weights come, which may be hundreds of gigabytes."""
        folders = {artifact.name: artifact.folder for artifact in artifacts}
        checks = model_checks.of_configuration(
            self._flags,
            folders.get(MODEL_ARTIFACT),
            folders.get(DRAFT_ARTIFACT),
            self._wanted.weights,
            self._wanted.context_extension,
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
        with failed.storage(self._wanted.links):
            pod_folder.point(artifact.links, artifact.name, artifact.listing.revision)
        if self._wanted.service and artifact.name in (MODEL_ARTIFACT, DRAFT_ARTIFACT):
            uses.record(artifact.store, self._use(artifact.name, artifact.origin, artifact.listing), say)
        say(f"{artifact.origin.uri} is there: {folder}")
        self._tell({"artifact": artifact.name, "path": str(folder)})

    def _transfer(self, transfer: Transfer) -> None:
        self._tell({"transfer": transfer.to_document()})


def _named(text: str) -> tuple[str, str]:
    name, separator, uri = text.partition("=")
    if not separator or not is_inside(name) or "/" in name:
        raise failed.not_found("--fetch", f"--fetch={text} is no NAME=URI.", "For example --fetch=model=hf://ORG/NAME.")
    return name, uri


def _raise_first(failures: Iterator[Failure]) -> None:
    failure = next(failures, None)
    if failure is not None:
        raise failed.FetchFailed.of(replace(failure, phase=Phase.FETCHING))
