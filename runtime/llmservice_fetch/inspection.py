"""Inspects a model without loading it: config.json and the headers of its safetensors files.

`python -m llmservice_fetch inspect` prints the result as one line of JSON and writes it as the container's termination
message, which the operator reads. The exit code is 0 with a result, which may be a failure such as a missing model.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from llmservice_runtime.bounded_json import Refused, parse
from llmservice_runtime.contract import MODEL_ARTIFACT, Failure, FailureReason
from llmservice_runtime.inspection.config_json import from_params, selected
from llmservice_runtime.inspection.inspected import Inspection
from llmservice_runtime.inspection.other_formats import NotAModel, draft, not_a_model, of_files
from llmservice_runtime.inspection.tensors import (
    INDEX_BYTES,
    LENGTH_BYTES,
    Header,
    Sum,
    header_length,
    layers_of,
    parse_header,
    shards,
)
from llmservice_runtime.preflight import model_files
from llmservice_runtime.preflight.model_files import CONFIG_BYTES, CONFIG_DEPTH, CONFIG_PARTS
from llmservice_runtime.redact import Redacted, Redactor, log

from llmservice_fetch import failed
from llmservice_fetch.failed import Unreachable
from llmservice_fetch.files import Listing, Origin, RemoteFile, select
from llmservice_fetch.origins import origin_of, schemes
from llmservice_fetch.transfer import RetryPolicy, retrying

T = TypeVar("T")
BUDGET_SECONDS = 60.0
# Few attempts: a model that is served from a cache must not wait long for an unreachable hub.
ATTEMPTS = 4
TIMEOUT_SECONDS = 10.0


@dataclass
class Budget:
    """Time limit for all requests together, in seconds."""

    seconds: float = BUDGET_SECONDS
    log: Callable[[str], None] = field(default=lambda _: None)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        end = self.clock() + self.seconds
        self._policy = RetryPolicy(ATTEMPTS, longest=8.0, sleep=self.sleep, left=lambda: max(0.0, end - self.clock()))

    def retrying(self, action: Callable[[], T], place: str) -> T:
        """The result of a request, with retries. FetchFailed after the last one."""
        return retrying(action, self._policy, self.log, place)


class Remote:
    """A repository of the hub, or a bucket."""

    def __init__(self, origin: Origin, budget: Budget) -> None:
        self._origin, self._budget = origin, budget
        self._listing: Listing = budget.retrying(origin.listing, origin.uri)
        self.uri, self.field = origin.uri, origin.field
        self.revision: str | None = self._listing.revision
        self.files = self._listing.files

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """Read by a range request; of a response that ignores the range only what is needed."""
        return self._budget.retrying(lambda: self._read(file, start, end), self.uri)

    def _read(self, file: RemoteFile, start: int, end: int) -> bytes:
        body = bytearray()
        with self._origin.read(self._listing, file, start, end) as (at, chunks):
            if at > start:
                raise Unreachable(f"{self.uri} sends another part of {file.path} than requested")
            for chunk in chunks:
                body += chunk
                if at + len(body) >= end:
                    break
        if at + len(body) < end:
            raise Unreachable(f"{self.uri}: the connection ended early, in {file.path}")
        return bytes(body[start - at : end - at])


class Folder:
    """A local folder, or a single config.json."""

    revision: str | None = None

    def __init__(self, path: Path, field: str) -> None:
        self.uri, self.field = str(path), field
        self._folder = path.parent if path.is_file() else path
        found = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
        self.files = tuple(RemoteFile(self._name(entry), entry.stat().st_size, blob="") for entry in found)
        self._paths = dict(zip((file.path for file in self.files), found, strict=False))

    def _name(self, path: Path) -> str:
        """A single JSON file counts as config.json."""
        return "config.json" if str(path) == self.uri and path.suffix == ".json" else path.name

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        try:
            with self._paths[file.path].open("rb") as opened:
                opened.seek(start)
                return opened.read(end - start)
        except OSError as error:
            raise unreadable(f"{self._paths[file.path]} cannot be read: {error.strerror or error}.") from None


Source = Remote | Folder
"""The files of one revision: `uri` for messages, `field` of the spec, `revision` (None: unknown), `files`, `read`."""


def source_of(uri: str, environment: Mapping[str, str], hide: Callable[[str], None], budget: Budget) -> Source:
    """The source of a URI that has an origin, or of a path. FetchFailed."""
    where = failed.field_of(MODEL_ARTIFACT, uri)
    origin = origin_of(uri, where, environment, hide)
    if origin is not None:
        return Remote(origin.within(TIMEOUT_SECONDS), budget)
    if "://" in uri:
        raise failed.not_found(where, f"{uri!r} cannot be inspected.", f"It must be {schemes('a folder')}.")
    path = Path(uri)
    try:
        if not path.is_file():
            _check_folder(path)
        return Folder(path, where)
    except OSError as error:
        raise unreadable(f"{uri} cannot be read: {error.strerror or error}.") from None


def _check_folder(folder: Path) -> None:
    """Check a folder as the preflight does. Weights may be missing, as for `llmservice plan`."""
    failure = next(model_files.check_files(folder, needs_weights=False), None)
    if failure is None and any(path.suffix in model_files.WEIGHT_SUFFIXES for path in folder.iterdir()):
        failure = next(model_files.check_files(folder, needs_weights=True), None)
    if failure is not None:
        raise failed.FetchFailed.of(failure)


def unreadable(message: str) -> failed.FetchFailed:
    """Files that cannot be read, or do not match their index."""
    return failed.FetchFailed(
        FailureReason.WEIGHTS_UNREADABLE, message, "Check spec.model.uri and the permissions of the files."
    )


CONFIG = "config.json"
PARAMS = "params.json"
INDEX = "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"
# Shorter than the pod's deadline, at which Kubernetes would end it without a message.
DEADLINE_SECONDS = 100.0
_WORKERS = 8
# Bytes of one header in memory. Headers of the largest models are far smaller.
_HEADER_LIMIT = 30 << 20
_DOWNLOAD_REMEDY = (
    "Check DNS, proxy and CA settings of the operator's chart, and that pods of this namespace may reach {}. Or give "
    "the facts in spec.model.architecture."
)


def inspect(
    uri_or_path: str,
    environment: Mapping[str, str],
    *,
    budget: Budget | None = None,
    redactor: Redactor | None = None,
    is_draft: bool = False,
) -> Inspection:
    """Facts about the model at hf://, a bucket or a path (a folder or a config.json).

    A draft is a failure unless it is asked for (`is_draft`), as an adapter and another engine's format always are.
    Problems of the model, the network or the credentials do not raise; they are the Inspection's failure.
    """
    redactor = redactor or Redactor(environment)
    source: Source | None = None
    try:
        source = source_of(uri_or_path, environment, redactor.hide, budget or Budget())
        return _inspected(source, is_draft)
    except failed.FetchFailed as error:
        failure = replace(redactor.failure(error.failure), phase=None)
        if failure.reason is FailureReason.MODEL_DOWNLOAD_FAILED:
            failure = replace(failure, remedy=_DOWNLOAD_REMEDY.format(uri_or_path))
        return Inspection(source.revision if source else None, failure=failure)


def _inspected(source: Source, is_draft: bool) -> Inspection:
    config = _config(source)
    other = not_a_model(config) or (None if is_draft else draft(config))
    if other is not None:
        raise _other(source, other)
    kept = selected(config)
    weights = _weights(source)
    if weights is None:
        return Inspection(source.revision, kept)
    summed = Sum(layers_of(config))
    for header in _headers(source, weights):
        summed.add(header)
    if summed.dtype and not _names_dtype(config):
        # vLLM also uses the tensors' dtype where the config names none.
        kept["torch_dtype"] = summed.dtype
    return Inspection(source.revision, kept, summed.to_document())


def _config(source: Source) -> dict[str, Any]:
    """The model's configuration under the names of config.json, including a quantizer's separate file."""
    named = {file.path: file for file in source.files}
    if CONFIG in named:
        config = _document(source, named[CONFIG])
    elif PARAMS in named:
        config = from_params(_document(source, named[PARAMS]))
    else:
        other = of_files(named, lambda name: _document(source, named[name]))
        if other is not None:
            raise _other(source, other)
        shown = ", ".join(sorted(named)[:8]) or "nothing"
        raise failed.not_found(
            source.field,
            f"{source.uri} has no {CONFIG}; it holds: {shown}.",
            "It must be the folder of a model in Hugging Face's format.",
        )
    if not config.get("quantization_config") and MODELOPT in named:
        config["quantization_config"] = _document(source, named[MODELOPT])
    return config


def _other(source: Source, found: NotAModel) -> failed.FetchFailed:
    return failed.FetchFailed(FailureReason.MODEL_NOT_FOUND, f"{source.uri} {found.what}.", found.remedy)


def _document(source: Source, file: RemoteFile) -> dict[str, Any]:
    if file.size > CONFIG_BYTES:
        raise _invalid(source, f"{file.path} of {source.uri} has {file.size} bytes")
    try:
        text = source.read(file, 0, file.size)
        document = parse(text, CONFIG_BYTES, CONFIG_DEPTH, CONFIG_PARTS, drops_numbers=True)
    except Refused as why:
        raise _invalid(source, f"{file.path} of {source.uri} is not JSON: {why}") from None
    if not isinstance(document, dict):
        raise _invalid(source, f"{file.path} of {source.uri} is not a JSON object")
    return document


def _invalid(source: Source, message: str) -> failed.FetchFailed:
    return failed.FetchFailed(
        FailureReason.MODEL_CORRUPT, f"{message}.", f"Upload the file again where {source.field} points to."
    )


def _weights(source: Source) -> list[RemoteFile] | None:
    """The safetensors files that vLLM loads; None where it loads another format, or there are none."""
    _, chosen = select(source.files)
    here = [file for file in chosen if "/" not in file.path]
    tensors = [file for file in here if file.path.endswith(".safetensors")]
    if not tensors or len(tensors) < len(here):
        return None
    index = next((file for file in source.files if file.path == INDEX), None)
    if index is None or index.size > INDEX_BYTES:
        return tensors
    named = _named_by(source, index)
    if missing := sorted(named - {file.path for file in tensors}):
        raise unreadable(f"{INDEX} names files that are not in {source.uri}: {', '.join(missing[:8])}.")
    return [file for file in tensors if file.path in named] if named else tensors


def _named_by(source: Source, index: RemoteFile) -> frozenset[str]:
    try:
        return shards(source.read(index, 0, index.size))
    except Refused as why:
        raise _invalid(source, f"{INDEX} of {source.uri} is not readable: {why}") from None


def _headers(source: Source, files: Iterable[RemoteFile]) -> Iterable[Header]:
    """The headers of all files, read concurrently. The first failure ends all."""
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="inspect") as pool:
        running = [pool.submit(_header, source, file) for file in files]
        try:
            for future in running:
                yield future.result()
        except failed.FetchFailed:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _header(source: Source, file: RemoteFile) -> Header:
    """Read a header by two requests: its length, then itself."""
    try:
        length = header_length(source.read(file, 0, min(LENGTH_BYTES, file.size)), file.size, _HEADER_LIMIT)
        return parse_header(source.read(file, LENGTH_BYTES, LENGTH_BYTES + length), file.size)
    except Refused as error:
        message = f"{file.path} of {source.uri} is damaged or was cut short: {error}."
        raise failed.corrupt(source.field, message) from None


def _names_dtype(config: Mapping[str, Any]) -> bool:
    parts = (config, *(config.get(name) for name in ("text_config", "vision_config", "encoder_config")))
    return any(part.get("torch_dtype") or part.get("dtype") for part in parts if isinstance(part, Mapping))


def main(model: str, termination_log: Path | None) -> int:
    """Inspect, print and write the message; the exit code. Ends after DEADLINE_SECONDS even if a server hangs."""
    redactor = Redactor(os.environ)
    sys.stderr = Redacted(sys.stderr, redactor)
    budget = Budget(log=log)
    found: list[Inspection] = []
    work: Callable[[], None] = lambda: found.append(inspect(model, os.environ, budget=budget, redactor=redactor))  # noqa: E731
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    if not found and not thread.is_alive():
        return 1  # the traceback is in the log
    text = (found[0] if found else Inspection(failure=_too_slow(model))).to_json()
    if termination_log is not None:
        termination_log.write_text(text, encoding="utf-8")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    if not found:
        # Threads that still read would block the interpreter's exit.
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(0)
    return 0


def _too_slow(model: str) -> Failure:
    return Failure(
        FailureReason.MODEL_DOWNLOAD_FAILED,
        f"The headers of {model} were not read within {DEADLINE_SECONDS:.0f} s.",
        _DOWNLOAD_REMEDY.format(model),
    )
