"""What is known of a model: from a config.json, a folder, the hub or a bucket. Weights are never read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmservice_operator.planner.model.architecture import Architecture, Incomplete, InvalidModel
from llmservice_operator.planner.model.tensors import Tensors
from llmservice_runtime.contract import Failure, FailureReason

from llmservice_cli.errors import STDIN, BadInput, read_text, syntax

from .reading import read
from .values import Refused, shown

REMOTE = ("hf://", "s3://", "gs://", "az://")
_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?", re.ASCII)
CONFIG_JSON = "config.json"
PATIENCE_SECONDS = 6.0
"""Somebody waits at a prompt; a Job has more time."""
_OTHERWISE = "Or give its config.json with --config."
_NO_ACCESS = (
    "Set HF_TOKEN (hf://), AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3://), GOOGLE_APPLICATION_CREDENTIALS (gs://) "
    f"or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (az://) to what may read it. {_OTHERWISE}"
)
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


def from_document(document: object, label: str, tensors: Tensors | None = None) -> Model:
    """A config.json's content, or facts under the same names; Refused, or BadInput naming the key, where it is none."""
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise Refused(f"{shown(document)} is no model's configuration.", "Give the content of its config.json.")
    try:
        return Model(read(document), tensors, document=document)
    except Incomplete as incomplete:
        return Model(None, tensors, incomplete.missing, document)
    except InvalidModel as invalid:
        remedy = "Take config.json as the model's publisher wrote it."
        raise BadInput.of(f"{label}.{invalid.key}", f"{invalid}.", remedy) from None


def from_config(place: str, label: str = "--config") -> Model:
    """A file, a folder with config.json (and safetensors, whose headers give the real bytes), or stdin.

    `label` is what the user calls it, for BadInput.
    """
    path = Path(place)
    if place != STDIN and path.is_dir():
        return _from_folder(path, label)
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


def from_uri(uri: str) -> Model:
    """--model: hf://, s3://, gs://, az:// or a local folder; NotReached where it cannot be read."""
    from llmservice_fetch.inspect_source import Budget
    from llmservice_fetch.inspection import inspect

    if not uri.startswith(REMOTE):
        path = Path(uri.removeprefix("file://"))
        if not path.exists():
            raise Refused(
                f"{uri} is neither hf://ORG/NAME, a bucket (s3://, gs://, az://) nor a folder here.",
                "Give one of them, or the model's config.json with --config.",
            )
        return from_config(str(path), "--model")
    found = inspect(uri, dict(os.environ), budget=Budget(seconds=PATIENCE_SECONDS, log=_print_note))
    if found.failure is not None:
        remedy = _REMEDIES.get(found.failure.reason, f"{found.failure.remedy} {_OTHERWISE}")
        raise NotReached(replace(found.failure, remedy=remedy))
    return from_document(found.config, "--model", _tensors(found.tensors))


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
        raise BadInput.of(option, f"{place}: {unreached.failure.message}", unreached.failure.remedy) from None


def _from_folder(folder: Path, label: str) -> Model:
    from llmservice_fetch.inspection import inspect

    if not (folder / CONFIG_JSON).is_file():
        raise Refused(f"{folder} holds no {CONFIG_JSON}.", "Give the folder of a model, or its config.json.")
    tensors = None
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json")):
        found = inspect(str(folder), dict(os.environ))
        if found.failure is not None:
            raise NotReached(found.failure)
        tensors = _tensors(found.tensors)
    model = from_config(str(folder / CONFIG_JSON), label)
    return replace(model, tensors=tensors)


def _tensors(document: Mapping[str, Any] | None) -> Tensors | None:
    return None if document is None else Tensors.from_document(document)


def _print_note(text: str) -> None:
    """Why it takes longer."""
    print(f"note: {text}", file=sys.stderr)
