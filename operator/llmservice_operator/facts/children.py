"""Projections of child objects: what decisions need, without values that change by themselves.

Equal projections lead to the same decision. `resource_version` is not compared, so a cache must replace equal
projections too.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import orjson
from llmservice_api.constants import (
    ADAPTERS_ANNOTATION,
    API_SERVER_LABEL,
    GROUP,
    MANAGED_BY_LABEL,
    OPERATOR,
    RANK_LABEL,
    ROUTER_LABEL,
    SERVICE_LABEL,
    direct_name,
)
from llmservice_api.holding import ACTIVATOR_SLICES, REPLICA_SLICES, SERVICE_NAME_LABEL, SLICE_MANAGER_LABEL
from llmservice_api.untrusted import stored_record
from llmservice_runtime.bounded_json import clean

from llmservice_operator.facts import normalize
from llmservice_operator.facts.drift import foreign_paths, is_applied
from llmservice_operator.facts.normalize import (
    Controller,
    controller_of,
    identity_of,
    is_deleting,
)

Json = Mapping[str, Any]


LARGEST = 512 * 1024
"""Bytes of a child's content that are kept. The operator's own children have a third of it at most; others may write
into them, or create objects with the operator's labels."""
MOST_FOREIGN = 256
"""Foreign field paths that are kept of one object."""
LONGEST_ANNOTATION = 1024
"""Characters; the operator's own are hashes and words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFacts:
    """Fields that all children have."""

    kind: ClassVar[str]
    content: ClassVar[tuple[str, ...]] = ("spec",)

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    deleting: bool
    controller: Controller | None
    service: str | None
    """Value of the label that names the LLMService."""
    managed_by: str | None
    foreign: frozenset[str]
    """Field paths within the compared content that only other managers own."""
    is_applied: bool
    """An apply of this operator is recorded in managedFields."""
    managed_hash: str
    """Hash of the live content. Where it and the manifest are unchanged, no comparison is needed."""
    body: bytes = field(compare=False, repr=False)
    """The live content, compressed, for a comparison. Empty where it exceeds `LARGEST`: it then differs from any
    manifest, and foreign fields are removed."""
    fingerprint: bytes = field(compare=False, repr=False)
    """Hash of the input of `foreign`, `is_applied`, `managed_hash` and `body`."""

    @property
    def owner_uid(self) -> str | None:
        return self.controller.uid if self.controller else None

    @property
    def has_operator_labels(self) -> bool:
        """Whether it has the labels that only this operator sets, whoever owns it."""
        return self.managed_by == OPERATOR and self.service is not None

    def live(self) -> dict[str, Any]:
        """The content to compare with a manifest."""
        if not self.body:
            return {"metadata": {}} | {part: {} for part in self.content}
        content: dict[str, Any] = orjson.loads(zlib.decompress(self.body))
        return content

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        """Project an object of the API server; unchanged parts are taken from the projection `known`."""
        return cls(**common_of(obj, cls.content, known))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts(ChildFacts):
    kind: ClassVar[str] = "Service"
    adapters: str | None = None
    """Digest of the applied list of adapters; None: none was applied."""
    selects_groups: bool = False
    """Requests go to replicas over several nodes."""
    selects_routers: bool = False
    """Requests go to the router's pods."""

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        selected = (obj.get("spec") or {}).get("selector") or ()
        return cls(
            **common_of(obj, cls.content, known),
            adapters=own_annotations(obj["metadata"]).get(ADAPTERS_ANNOTATION),
            selects_groups=not {RANK_LABEL, API_SERVER_LABEL}.isdisjoint(selected),
            selects_routers=ROUTER_LABEL in selected,
        )


@dataclass(frozen=True, slots=True)
class KedaCondition:
    """A condition of a ScaledObject, written by KEDA, with bounded texts."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectFacts(ChildFacts):
    kind: ClassVar[str] = "ScaledObject"
    conditions: Mapping[str, KedaCondition]
    """By type, those of KEDA_CONDITIONS that are present. Anyone with access to the status may have written them."""

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        return cls(**common_of(obj, cls.content, known), conditions=_keda_conditions(obj.get("status")))


KEDA_CONDITIONS = ("Ready", "Fallback", "HPAActive", "Paused")
MOST_CONDITIONS = 32
LONGEST_WORD, LONGEST_TEXT = 64, 512


def _keda_conditions(written: object) -> Mapping[str, KedaCondition]:
    """The last condition of each type; malformed ones are left out."""
    given = written.get("conditions") if isinstance(written, Mapping) else None
    found = {}
    for each in given[:MOST_CONDITIONS] if isinstance(given, list | tuple) else ():
        if isinstance(each, Mapping) and each.get("type") in KEDA_CONDITIONS:
            status, reason = (text_of(each.get(name), LONGEST_WORD) for name in ("status", "reason"))
            message = normalize.replica_failure(text_of(each.get("message"), LONGEST_TEXT))
            found[str(each["type"])] = KedaCondition(status, reason, message)
    return found


def text_of(value: object, most: int) -> str:
    """Of what others may have written; empty where it is no text."""
    return clean(value[:most]) if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts(ChildFacts):
    kind: ClassVar[str] = "PersistentVolumeClaim"
    phase: str = ""

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        return cls(**common_of(obj, cls.content, known), phase=str((obj.get("status") or {}).get("phase", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTemplateFacts(ChildFacts):
    kind: ClassVar[str] = "ResourceClaimTemplate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionFacts(ChildFacts):
    """A ControllerRevision: a recorded pod template and the key of its revision."""

    kind: ClassVar[str] = "ControllerRevision"
    content: ClassVar[tuple[str, ...]] = ("data", "revision")
    revision: int
    key: str
    label: str
    """The hash in the pods' label REVISION_LABEL."""
    update_requested: str | None
    created_at: str
    is_valid_record: bool
    """Whether this operator can have created it, with its content kept: others may create invalid or oversized ones."""

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        data = stored_record(obj.get("data"))
        chosen = (data or {}).get("chosen") or {}
        # Up to 1.5 MB for each, which nothing reads.
        common = common_of(obj if data is not None else {**obj, "data": None}, cls.content, known)
        return cls(
            **common,
            revision=int(obj.get("revision") or 0),
            key=str((data or {}).get("key", "")),
            label=obj["metadata"]["name"].rpartition("-")[2],
            update_requested=chosen.get("updateRequested"),
            created_at=str(obj["metadata"].get("creationTimestamp") or ""),
            is_valid_record=data is not None and bool(common["body"]),
        )

    def data(self) -> dict[str, Any]:
        """The record: `template`, and what was `chosen` with it. Parsed at each call."""
        data: dict[str, Any] = self.live()["data"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts(ChildFacts):
    """The Job that inspects a service's model."""

    kind: ClassVar[str] = "Job"
    created_at: str
    complete: bool
    failed: str | None
    """The Job controller's reason (DeadlineExceeded, BackoffLimitExceeded); None: it did not fail."""

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        conditions = {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or () if c["status"] == "True"}
        failed = conditions.get("Failed")
        return cls(
            **common_of(obj, cls.content, known),
            created_at=str(obj["metadata"].get("creationTimestamp") or ""),
            complete="Complete" in conditions,
            failed=None if failed is None else str(failed.get("reason") or "Failed"),
        )


def is_marked(metadata: Json, service: str) -> bool:
    """Whether an object has the labels that only this operator sets, for a service of this name."""
    labels = metadata.get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == OPERATOR and labels.get(SERVICE_LABEL) == service


def common_of(obj: Json, content: tuple[str, ...], known: ChildFacts | None) -> dict[str, Any]:
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    live = {
        "metadata": {
            "labels": labels,
            "annotations": own_annotations(metadata),
            "ownerReferences": metadata.get("ownerReferences") or [],
        }
    } | {key: obj.get(key) for key in content}
    text = orjson.dumps(live, option=orjson.OPT_SORT_KEYS)
    owners = [entry for entry in metadata.get("managedFields") or () if entry.get("subresource") != "status"]
    fingerprint = hashlib.sha256(text + orjson.dumps(owners)).digest()
    # A workload's controller writes its status much more often than its spec changes.
    is_known = known is not None and known.fingerprint == fingerprint
    made = {name: getattr(known, name) for name in _OF_CONTENT} if is_known else _of_content(text, owners)
    return identity_of(metadata) | {
        "deleting": is_deleting(metadata),
        "controller": controller_of(metadata),
        "service": labels.get(SERVICE_LABEL),
        "managed_by": labels.get(MANAGED_BY_LABEL),
        "fingerprint": fingerprint,
        **made,
    }


_OF_CONTENT = ("foreign", "is_applied", "managed_hash", "body")


def _of_content(text: bytes, owners: list[Json]) -> dict[str, Any]:
    return {
        "foreign": foreign_paths(owners, MOST_FOREIGN),
        "is_applied": is_applied(owners),
        "managed_hash": hashlib.sha256(text).hexdigest()[:16],
        "body": zlib.compress(text, 1) if len(text) <= LARGEST else b"",
    }


def own_annotations(metadata: Json) -> dict[str, str]:
    """The operator's own annotations; others may have any content."""
    annotations = metadata.get("annotations") or {}
    return {key: text[:LONGEST_ANNOTATION] for key, text in annotations.items() if key.startswith(f"{GROUP}/")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """An EndpointSlice that the cluster's controller created for the service's Service, or for NAME-direct.

    It shows which pods get requests: a ready pod may get none.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    service: str | None
    """None where it belongs to another Service and has a copied label."""
    is_direct: bool = False
    """Of NAME-direct."""
    ready: frozenset[str]
    """Uids of the pods that get requests."""

    @classmethod
    def from_object(cls, obj: Json, known: object = None) -> Self:
        """Project a slice; it is small, so that `known` is not used."""
        metadata = obj["metadata"]
        labels = metadata.get("labels") or {}
        service, of = labels.get(SERVICE_LABEL), labels.get(SERVICE_NAME_LABEL)
        is_direct = service is not None and of == direct_name(service)
        return cls(
            **identity_of(metadata),
            service=service if is_direct or service == of else None,
            is_direct=is_direct,
            # Pods without the Service's port are listed as well, in a slice without ports.
            ready=frozenset(_ready(obj.get("endpoints") or ())) if obj.get("ports") else frozenset(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingSliceFacts(ChildFacts):
    """An EndpointSlice of the operator's own, or with the name of one: it points at the activators, or past a router at
    the replicas."""

    kind: ClassVar[str] = "EndpointSlice"
    content: ClassVar[tuple[str, ...]] = ("addressType", "endpoints", "ports")


def slice_from_object(obj: Json, known: object = None) -> SliceFacts | HoldingSliceFacts:
    """The projection of any EndpointSlice with the service's label."""
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    if metadata["name"].endswith((*ACTIVATOR_SLICES, *REPLICA_SLICES)) or labels.get(SLICE_MANAGER_LABEL) == GROUP:
        return HoldingSliceFacts.from_object(obj, known if isinstance(known, HoldingSliceFacts) else None)
    return SliceFacts.from_object(obj, known)


def _ready(endpoints: Iterable[Json]) -> Iterable[str]:
    for endpoint in endpoints:
        target = endpoint.get("targetRef") or {}
        # In the API, absent means ready.
        if target.get("kind") == "Pod" and (endpoint.get("conditions") or {}).get("ready") is not False:
            yield str(target.get("uid", ""))
