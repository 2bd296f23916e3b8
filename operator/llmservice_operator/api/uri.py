"""Where a model comes from: `spec.model.uri`, taken apart. CEL in the CRD says the same; this is for stored objects."""

import re
from dataclasses import dataclass

from llmservice_operator.api.errors import InvalidSpec, Problem

FIELD = "spec.model.uri"
SCHEMES = ("hf", "pvc", "file")
FORMS = "hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH or file:///PATH"

HF_REPO = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HF_REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
PATH = r"[^\s@:?#\\/]+(/[^\s@:?#\\/]+)*/?"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face hub, or on what HF_ENDPOINT names."""

    repo: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A folder in a PersistentVolumeClaim; an empty path is its root."""

    claim: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder that the runtime image already has."""

    path: str


ModelSource = HubSource | ClaimSource | FileSource


def parse(uri: str) -> ModelSource:
    """Take a model URI apart, or say what is wrong with it."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in SCHEMES:
        raise _invalid(f"{uri!r} has no scheme that this version serves.", f"Write {FORMS}.")
    if ".." in rest or "//" in rest:
        raise _invalid(f"{uri!r} holds '..' or '//'.", "Write the plain path of the model.")
    match scheme:
        case "hf":
            return _hub(uri, rest)
        case "pvc":
            return _claim(uri, rest)
        case _:
            return _file(uri, rest)


def _hub(uri: str, rest: str) -> HubSource:
    if not re.fullmatch(f"{HF_REPO}(@{HF_REVISION})?", rest):
        raise _invalid(f"{uri!r} is no hf:// URI.", "Write hf://ORG/NAME or hf://ORG/NAME@REVISION.")
    repo, _, revision = rest.partition("@")
    return HubSource(repo, revision or None)


def _claim(uri: str, rest: str) -> ClaimSource:
    if not re.fullmatch(f"{CLAIM}(/({PATH})?)?", rest):
        raise _invalid(f"{uri!r} is no pvc:// URI.", "Write pvc://CLAIM/PATH: a claim's name and a path in it.")
    claim, _, path = rest.partition("/")
    return ClaimSource(claim, path.rstrip("/"))


def _file(uri: str, rest: str) -> FileSource:
    if not re.fullmatch(f"/{PATH}", rest):
        raise _invalid(f"{uri!r} is no file:// URI.", "Write file:///PATH: three slashes and a path in the image.")
    return FileSource(rest.rstrip("/"))


def _invalid(message: str, remedy: str) -> InvalidSpec:
    return InvalidSpec([Problem(FIELD, message, remedy)])
