"""Why a container does not start: the reason behind the words of a kubelet, a container runtime or a registry.

Of several patterns that match, the first one counts: specific ones come before general ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from llmservice_runtime.contract import FailureReason

from llmservice_operator.api.reasons import Reason

IMAGE_WORDS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
"""Reasons of waiting containers whose image is not there."""
START_WORDS = frozenset(
    {"CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError"}
    | {"StartError", "ContainerCannotRun"}
)
"""Reasons of containers, waiting or ended, of which nothing has run: there is no log."""
CONFIG_WORD = "CreateContainerConfigError"

_LONGEST = 700
"""Characters of a sentence; the cause is at its end."""
_CONTAINER_ID = re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b")


class Cause(NamedTuple):
    """What a message means."""

    reason: Reason
    remedy: str = ""
    """Where the reason's own is too general."""


class _Pattern(NamedTuple):
    words: re.Pattern[str]
    cause: Cause


def _of(words: str, reason: Reason, remedy: str = "") -> _Pattern:
    return _Pattern(re.compile(words, re.IGNORECASE), Cause(reason, remedy))


_DISK = _of(r"no space left on device|disk quota exceeded", Reason.NODE_DISK_FULL)
_PULL: tuple[_Pattern, ...] = (
    _DISK,
    _of(
        r"no match for platform in manifest|no image found in image index for architecture|no matching manifest for ",
        Reason.IMAGE_ARCHITECTURE_MISMATCH,
    ),
    _of(
        r"pull access denied|insufficient_scope|\b40[13] (?:Unauthorized|Forbidden)\b|unauthorized"
        r"|authorization failed|authentication required|no basic auth credentials|\bdenied\b",
        Reason.IMAGE_PULL_DENIED,
    ),
    _of(
        r"no such host",
        Reason.IMAGE_PULL_FAILED,
        "Check the host in the image's name; the node's name server does not know it.",
    ),
    _of(
        r"\bx509: ",
        Reason.IMAGE_PULL_FAILED,
        "Have the node's container runtime trust the CA that signed the registry's certificate, and check that the "
        "certificate is of this host and has not expired.",
    ),
    _of(
        r"\b429 Too Many Requests|toomanyrequests|registry is unavailable"
        r"|\b500 Internal Server Error|\b502 Bad Gateway|\b503 Service Unavailable|\b504 Gateway Time-?out"
        r"|connection refused|connection reset|i/o timeout|no route to host|network is unreachable"
        r"|server misbehaving|TLS handshake timeout|\btls: |Client\.Timeout|deadline exceeded"
        r"|context canceled|(?-i:\bEOF)\s*$",
        Reason.REGISTRY_UNAVAILABLE,
    ),
    _of(r"not found|manifest unknown|name unknown|no such image|not present with pull policy", Reason.IMAGE_NOT_FOUND),
)
_WAIT = "Wait, where the node has just started or its driver is being updated. Else: "
_START: tuple[_Pattern, ...] = (
    _of(r"unsatisfied condition: ", Reason(FailureReason.DRIVER_MISMATCH)),
    _of(
        r"unresolvable CDI devices",
        Reason.DRIVER_UNAVAILABLE,
        f"{_WAIT}the node has no CDI specification of that device, or one of an earlier driver: have it made anew "
        "there (`nvidia-ctk cdi generate`, or a restart of the GPU operator's toolkit and device plugin).",
    ),
    _of(
        r"driver/library version mismatch",
        Reason.DRIVER_UNAVAILABLE,
        f"{_WAIT}reboot the node, or reload the driver's kernel module: its driver was updated, and the module of the "
        "one before is still loaded.",
    ),
    _of(
        r"driver not loaded|load library failed",
        Reason.DRIVER_UNAVAILABLE,
        f"{_WAIT}install the GPU's driver on the node, or load its kernel module; `nvidia-smi` there shows whether it "
        "works.",
    ),
    _of(r"nvidia-container-cli: device error", Reason(FailureReason.ACCELERATOR_MISSING)),
    _of(
        r"nvidia-container-cli: |could not apply required modification to OCI specification", Reason.DRIVER_UNAVAILABLE
    ),
    _DISK,
    _of(r"exec format error", Reason.IMAGE_ARCHITECTURE_MISMATCH),
)


def why_not_pulled(word: str, message: str) -> Cause:
    """`word`: one of IMAGE_WORDS; `message`: what the kubelet and the container runtime quote of the registry."""
    if word in ("ErrImageNeverPull", "InvalidImageName"):
        return Cause(Reason.IMAGE_NOT_FOUND)
    return _first(_PULL, message) or Cause(Reason.IMAGE_PULL_FAILED)


def why_not_started(message: str) -> Cause:
    """Of a container of which nothing has run."""
    return _first(_START, message) or Cause(Reason.CONTAINER_NOT_STARTED)


def is_of_another_architecture(message: str) -> bool:
    """Whether the one line of a container's log says that its program is none of this node's."""
    return message.rstrip().lower().endswith("exec format error")


def is_of_full_disk(message: str) -> bool:
    """Whether the disk that is full is the node's."""
    return _DISK.words.search(message) is not None


def sentence_of(message: str) -> str:
    """In one line, without the names that change with each try; of a long one its end, which has the cause."""
    line = _CONTAINER_ID.sub("...", " ".join(message.split())).removesuffix(": unknown").rstrip(".")
    return line if len(line) <= _LONGEST else f"... {line[-_LONGEST:]}"


def _first(patterns: Sequence[_Pattern], message: str) -> Cause | None:
    return next((each.cause for each in patterns if each.words.search(message)), None)
