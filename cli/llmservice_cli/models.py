"""What is known of a model: from a config.json, a folder, the hub or a bucket. Weights are never read."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from llmservice_api.model import ACCESSES, FETCHED, one_of
from llmservice_api.service import LLMService
from llmservice_planner.model import config_json, spec_facts
from llmservice_planner.model.architecture import Architecture, Incomplete, InvalidModel, Tensors, UnsupportedModel
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.inspection import other_formats
from llmservice_runtime.inspection.config_json import from_params, is_params

from .errors import STDIN, BadInput, Refused, is_file, is_folder, quoted, read_text, say, syntax

REMOTE = tuple(f"{name}://" for name in FETCHED)
_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?", re.ASCII)
PATIENCE_SECONDS = 6.0
"""Somebody waits at a prompt; a Job has more time."""
_DESCRIPTIONS = frozenset({"config.json", "params.json", other_formats.ADAPTER_CONFIG})
FACTS = "spec.model.architecture"
_GIVE_FACTS = (
    f"Give the model's facts in {FACTS} of a manifest (numHiddenLayers, hiddenSize, numAttentionHeads, vocabSize and "
    "intermediateSize at least); its modelType says as which known type they are read."
)
_OTHERWISE = "Or give its config.json with --config."
_BY_HAND = tuple(
    f"{access.by_hand} ({', '.join(f'{name}://' for name in names)})" for access, names in ACCESSES.items()
)
_NO_ACCESS = f"Set {one_of(_BY_HAND)} to what may read it. {_OTHERWISE}"
_REMEDIES = {
    FailureReason.MODEL_DOWNLOAD_FAILED: f"Check the network, proxies and HF_ENDPOINT. {_OTHERWISE}",
    FailureReason.MODEL_ACCESS_DENIED: _NO_ACCESS,
    FailureReason.MODEL_TOKEN_REFUSED: _NO_ACCESS,
}
"""The remedies of an inspection Job name Secrets and charts instead."""


class NotReached(Exception):
    """A model that could not be read, and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Model:
    """Facts of one model; what is missing where they are too few to compute with."""

    architecture: Architecture | None = None
    tensors: Tensors | None = None
    missing: tuple[str, ...] = ()
    document: Mapping[str, Any] | None = None
    """What the architecture was read from."""
    why_missing: str | None = None
    """Where nothing is missing that the model's own file could say."""


def from_document(document: object, label: str, tensors: Tensors | None = None, *, is_draft: bool = False) -> Model:
    """A config.json's content (or params.json's), or facts under the same names; Refused, or BadInput naming the key,
    where it is none.

    A draft is read as a model where it is asked for (`is_draft`), and else refused.
    """
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise Refused(f"{quoted(document)} is no model's configuration.", "Give the content of its config.json.")
    if is_params(document):
        document = from_params(document)
    other = other_formats.not_a_model(document) or (None if is_draft else other_formats.draft(document))
    if other is not None:
        raise Refused(f"It {other.what}.", other.remedy)
    try:
        return Model(read(document), tensors, document=document)
    except Incomplete as incomplete:
        return Model(None, tensors, incomplete.missing, document)
    except UnsupportedModel as unplanned:
        text = str(unplanned)
        return Model(None, tensors, (FACTS,), document, f"{text[:1].upper()}{text[1:]}. {_GIVE_FACTS}")
    except InvalidModel as invalid:
        remedy = "Take config.json as the model's publisher wrote it."
        raise BadInput.of(f"{label}.{invalid.key}", f"{invalid}.", remedy) from None


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(other_formats.GGUF_MAGIC)) == other_formats.GGUF_MAGIC
    except OSError:
        return False


def from_config(place: str, label: str = "--config") -> Model:
    """A file, a folder with config.json (and safetensors, whose headers give the real bytes), or stdin.

    `label` is what the user calls it, for BadInput.
    """
    path = Path(place)
    if place != STDIN and is_folder(place):
        return _from_folder(path, label)
    if place != STDIN and is_file(place) and _begins_as_gguf(path):
        gguf = other_formats.gguf_file()
        raise Refused(f"It {gguf.what}.", gguf.remedy)
    text = read_text(place, label, "Give a file that is there, a folder, or - for stdin.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{place} is no JSON: {syntax(error)}.", "Give the model's config.json.") from None
    return from_document(document, label)


def meant(uri: str, notes: list[str]) -> str:
    """ORG/NAME is hf://ORG/NAME, unless there is such a folder here, which `notes` then say."""
    if not _ON_THE_HUB.fullmatch(uri):
        return uri
    if not Path(uri).exists():
        return f"hf://{uri}"
    notes.append(f"--model {uri} is the folder here, not hf://{uri}")
    return uri


def from_uri(uri: str, *, is_draft: bool = False) -> Model:
    """The model of a URI that is fetched, or of a local folder, `is_draft` of a draft model.

    NotReached where it cannot be read.
    """
    if not uri.startswith(REMOTE):
        path = Path(uri.removeprefix("file://"))
        if not path.exists():
            raise Refused(
                f"{uri} is neither hf://ORG/NAME, a bucket ({', '.join(REMOTE[1:])}) nor a folder here.",
                "Give one of them, or the model's config.json with --config.",
            )
        return from_config(str(path), "--model")
    return _inspected(uri, "--model", is_draft=is_draft)


def named(config: str | None, uri: str | None) -> Model | None:
    """The model of --config or --model; BadInput, about the option, where there is none to be had there."""
    option, place = ("--config", config) if config is not None else ("--model", uri)
    if place is None:
        return None
    try:
        return from_uri(place) if config is None else from_config(place)
    except Refused as refused:
        raise BadInput.of(option, refused.message, refused.remedy) from None
    except NotReached as unreached:
        raise BadInput.of(option, with_place(place, unreached.failure.message), unreached.failure.remedy) from None


def with_place(place: str, message: str) -> str:
    """The message about a place, with which it may begin."""
    return message if message.startswith(f"{place} ") else f"{place}: {message}"


def _from_folder(folder: Path, label: str) -> Model:
    names = {path.name for path in folder.iterdir()}
    if not names & _DESCRIPTIONS and other_formats.of_files(names, lambda _: {}) is None:
        raise Refused(f"{folder} holds no config.json.", "Give the folder of a model, or its config.json.")
    return _inspected(str(folder), label, is_draft=False)


def _inspected(place: str, label: str, *, is_draft: bool) -> Model:
    """As the operator's Job reads it: config.json or params.json, a quantizer's own file, and headers of weights."""
    from llmservice_fetch.inspection import Budget, inspect

    budget = Budget(seconds=PATIENCE_SECONDS, log=_note) if place.startswith(REMOTE) else Budget()
    found = inspect(place, dict(os.environ), budget=budget, is_draft=is_draft)
    if found.failure is not None:
        failure = found.failure
        # What is here, or is no model at all, has no other config.json.
        is_all = not place.startswith(REMOTE) or failure.reason is FailureReason.MODEL_NOT_FOUND
        remedy = failure.remedy if is_all else _REMEDIES.get(failure.reason, f"{failure.remedy} {_OTHERWISE}")
        raise NotReached(replace(failure, remedy=remedy))
    tensors = None if found.tensors is None else Tensors.from_document(found.tensors)
    return from_document(found.config, label, tensors, is_draft=is_draft)


GIVE_CONFIG = "Give its config.json with --config."


@dataclass(slots=True)
class Sources:
    """Models that were read: ten services of one model ask the hub once."""

    is_offline: bool = False
    _seen: dict[str, Model | NotReached] = field(default_factory=dict)

    def model_of(self, service: LLMService, named: Model | None) -> tuple[Model, tuple[str, ...]]:
        """Facts for the plan, and notes on them: the spec's first, then those of the model that options name, then of
        the hub or the bucket. What cannot be had leaves the plan Unknown, with the reason."""
        stated = spec_facts.from_spec(service.spec.model.architecture)
        if named is not None and not stated:
            return named, ()
        if named is not None:
            document = spec_facts.merge(named.document or {}, stated)
            return from_document(document, "the model", named.tensors), _disagreements(stated, named)
        alone = from_document(stated, "spec.model.architecture")
        if alone.architecture is not None:
            return alone, ()
        uri = service.spec.model.uri
        inspected, why = self._inspected(uri)
        if inspected is None:
            return replace(alone, why_missing=f"{uri} {why}"), ()
        document = spec_facts.merge(inspected.document or {}, stated)
        return from_document(document, "spec.model.uri", inspected.tensors), ()

    def draft_of(self, service: LLMService) -> Architecture | None:
        """Of its draft model; None where there is none, or it cannot be had."""
        draft = service.spec.draft_model
        found = None if draft is None else self._inspected(draft.uri, is_draft=True)[0]
        return None if found is None else found.architecture

    def _inspected(self, uri: str, *, is_draft: bool = False) -> tuple[Model | None, str]:
        """A model by its uri, or why it cannot be read from here."""
        if not uri.startswith(REMOTE):
            return None, f"is in the cluster and cannot be read from here. {GIVE_CONFIG}"
        if self.is_offline:
            return None, f"is not read with --offline. {GIVE_CONFIG}"
        if uri not in self._seen:
            try:
                self._seen[uri] = from_uri(uri, is_draft=is_draft)
            except NotReached as unreached:
                self._seen[uri] = unreached
        seen = self._seen[uri]
        if isinstance(seen, NotReached):
            return None, f"cannot be read: {seen.failure.message} {seen.failure.remedy}"
        return seen, ""


def _disagreements(stated: Mapping[str, Any], named: Model) -> tuple[str, ...]:
    """Facts of the spec that are not the model's."""
    document = named.document or {}
    return tuple(
        f"spec.model.architecture says {key} {quoted(value)}, the model's configuration {quoted(document[key])}: "
        "the spec's is planned, as the operator does"
        for key, value in stated.items()
        if isinstance(value, int | str) and document.get(key) not in (None, value)
    )


SECONDS = 10.0
"""Usual files take milliseconds."""


class TakesTooLong(Exception):
    """Reading was stopped."""


def read(document: Mapping[str, Any], *, seconds: float = SECONDS) -> Architecture:
    """`config_json.read`; Refused where it takes more processor time than that."""
    try:
        with limited(seconds):
            return config_json.read(document)
    except TakesTooLong:
        raise Refused(
            f"reading this config.json took more than {seconds:g} s of processor time, and was stopped.",
            "Take config.json as the model's publisher wrote it, or give the facts of the model one by one.",
        ) from None


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """So many seconds of processor time, then TakesTooLong. Signals are for the main thread: elsewhere no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TakesTooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _note(text: str) -> None:
    say(f"note: {text}")
