"""URIs of models, draft models and adapters, parsed.

The CRD has the same rules in CEL; these are for stored objects.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.scalars import IMAGE

FIELD = "spec.model.uri"
FORMS = (
    "hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, pvc://CLAIM/PATH, "
    "image://REFERENCE[#PATH] or file:///PATH"
)

HF_REPO = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HF_REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
GCS_BUCKET = r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"
AZURE_CONTAINER = r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"
CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
PATH = r"[^\s@:?#\\/]+(/[^\s@:?#\\/]+)*/?"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face hub, or on the server in HF_ENDPOINT."""

    repo: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class BucketSource:
    """The objects of a bucket whose keys start with a prefix; empty: the whole bucket."""

    bucket: str
    prefix: str = ""
    scheme: str = "s3"
    """s3, gs or az; a bucket is a container in Azure."""


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A folder in a PersistentVolumeClaim; empty path: its root."""

    claim: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A folder in an OCI image that is mounted as a volume; empty path: its root."""

    reference: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder of the runtime image."""

    path: str


Source = HubSource | BucketSource | ClaimSource | ImageSource | FileSource


def is_fetched(source: Source) -> bool:
    """Whether the files are downloaded before vLLM starts."""
    return isinstance(source, HubSource | BucketSource)


@functools.lru_cache(maxsize=1024)
def parse(uri: str, field: str = FIELD) -> Source:
    """Parse a URI; InvalidSpec with a Problem of the field."""
    name, separator, rest = uri.partition("://")
    scheme = SCHEMES.get(name)
    if not separator or scheme is None:
        raise _invalid(field, f"{uri!r} has no scheme that this version serves.", f"Write {FORMS}.")
    if ".." in rest or "//" in rest:
        raise _invalid(field, f"{uri!r} holds '..' or '//'.", "Write the plain path.")
    match = re.fullmatch(scheme.pattern, rest)
    if match is None:
        raise _invalid(field, f"{uri!r} is no {name}:// URI.", f"Write {scheme.form}.")
    return scheme.make(match.groupdict(default=""))


def _invalid(field: str, message: str, remedy: str) -> InvalidSpec:
    return InvalidSpec([Problem(field, message, remedy)])


@dataclass(frozen=True, slots=True)
class Scheme:
    """The part after NAME://: pattern, form for messages, and constructor of its source."""

    pattern: str
    """For Python's re and for RE2 in CEL."""
    form: str
    make: Callable[[Mapping[str, str]], Source]


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "hf": Scheme(
            rf"(?P<repo>{HF_REPO})(@(?P<revision>{HF_REVISION}))?",
            "hf://ORG/NAME or hf://ORG/NAME@REVISION",
            lambda part: HubSource(part["repo"], part["revision"] or None),
        ),
        "s3": Scheme(
            rf"(?P<bucket>{BUCKET})(/(?P<path>{PATH})?)?",
            "s3://BUCKET/PREFIX: a bucket's name and what the keys of the files begin with",
            lambda part: BucketSource(part["bucket"], part["path"].rstrip("/")),
        ),
        "gs": Scheme(
            rf"(?P<bucket>{GCS_BUCKET})(/(?P<path>{PATH})?)?",
            "gs://BUCKET/PREFIX: a bucket's name and what the names of the files begin with",
            lambda part: BucketSource(part["bucket"], part["path"].rstrip("/"), "gs"),
        ),
        "az": Scheme(
            rf"(?P<bucket>{AZURE_CONTAINER})(/(?P<path>{PATH})?)?",
            "az://CONTAINER/PREFIX: a container's name and what the names of the files begin with",
            lambda part: BucketSource(part["bucket"], part["path"].rstrip("/"), "az"),
        ),
        "pvc": Scheme(
            rf"(?P<claim>{CLAIM})(/(?P<path>{PATH})?)?",
            "pvc://CLAIM/PATH: a claim's name and a path in it",
            lambda part: ClaimSource(part["claim"], part["path"].rstrip("/")),
        ),
        "image": Scheme(
            rf"(?P<reference>{IMAGE.strip('^$')})(#/?(?P<path>{PATH})?)?",
            "image://REFERENCE or image://REFERENCE#PATH: an OCI image and a path in it",
            lambda part: ImageSource(part["reference"], part["path"].rstrip("/")),
        ),
        "file": Scheme(
            rf"(?P<path>/{PATH})",
            "file:///PATH: three slashes and a path in the image",
            lambda part: FileSource(part["path"].rstrip("/")),
        ),
    }
)
