"""What Kubernetes asks of every object's metadata: names, labels, annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llmservice_operator.api.errors import Problem

from llmservice_cli.namespaces import LABEL, is_namespace

from .suggestions import remedy

_FIELDS = frozenset(
    (
        *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers"),
        *("generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences"),
        *("resourceVersion", "selfLink", "uid"),
    )
)
_SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"({LABEL}(\.{LABEL})*/)?{_WORD}")
_LABEL_VALUE = re.compile(rf"({_WORD})?")
_LETTERS = "Write lowercase letters, digits and -, with a letter or digit at both ends."
_MOST_NAME = 253
_MOST_ANNOTATIONS = 256 * 1024


def problems(metadata: Any) -> Iterator[Problem]:
    """Everything that is wrong with an object's metadata."""
    if not isinstance(metadata, Mapping):
        yield Problem("metadata.name", "is required.", "Give the LLMService a name.")
        return
    for name in metadata:
        if name not in _FIELDS:
            yield Problem(f"metadata.{name}", "is an unknown field.", remedy(str(name), dict.fromkeys(_FIELDS)))
    name = metadata.get("name")
    if name is None:
        yield Problem("metadata.name", "is required.", "Give the LLMService a name.")
    elif not _is(_SUBDOMAIN, name, _MOST_NAME):
        yield Problem("metadata.name", f"{name!r} is not a name.", _LETTERS)
    namespace = metadata.get("namespace")
    if namespace is not None and not is_namespace(namespace):
        yield Problem("metadata.namespace", f"{namespace!r} is not a namespace's name.", _LETTERS)
    for field, check in (("labels", _labels), ("annotations", _annotations)):
        given = metadata.get(field)
        if isinstance(given, Mapping):
            yield from check(given)
        elif given is not None:
            yield Problem(f"metadata.{field}", "must be an object.", "Write names and texts.")


def _labels(labels: Mapping[Any, Any]) -> Iterator[Problem]:
    for key, value in labels.items():
        if not _is(_LABEL_KEY, key, _MOST_NAME + 64) or not _is(_LABEL_VALUE, value, 63):
            yield Problem(
                "metadata.labels",
                f"{key}: {value!r} is not a label.",
                "Write NAME or DOMAIN/NAME and a text of at most 63 letters, digits, - _ and .",
            )


def _annotations(annotations: Mapping[Any, Any]) -> Iterator[Problem]:
    for key, value in annotations.items():
        if not _is(_LABEL_KEY, key.lower(), _MOST_NAME + 64) or not isinstance(value, str):
            yield Problem("metadata.annotations", f"{key}: {value!r} is not an annotation.", "Write text, in quotes.")
    if sum(len(str(part).encode()) for pair in annotations.items() for part in pair) > _MOST_ANNOTATIONS:
        yield Problem("metadata.annotations", "are more than 256 KiB.", "Shorten them.")


def _is(form: re.Pattern[str], value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and form.fullmatch(value) is not None
