"""The watches: which kinds (resources, projections, selectors), those of all kinds except LLMServices, which kopf
watches, and that of the activators that can hold requests, from the EndpointSlices of their Service.

All watches and lists call one event handler, which stores a projection in the cache and queues a key if it changed. A
changed LLMService is reconciled at once. Changes of children come in bursts (a pod that becomes ready changes itself,
its workload and its EndpointSlice, several times each), which are combined into one reconcile.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kubeloop import resources
from kubeloop.errors import Forbidden, KubeError, NotFound
from kubeloop.informer import (
    Cache,
    Index,
    Informer,
    Project,
    Seen,
    SyncState,
    newer,
)
from kubeloop.queue import Priority
from kubeloop.resources import ENDPOINT_SLICE, JOB, POD, Key, Resource
from kubeloop.transport import Transport
from llmservice_api import untrusted
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import (
    BY_KIND,
    CHILD_KINDS,
    HTTP_ROUTE,
    INSPECTS_LABEL,
    LEADER_WORKER_SET,
    LLMSERVICE,
    MANAGED_BY_LABEL,
    OPERATOR,
    OPTIONAL,
    RESOURCE_CLAIM_TEMPLATE,
    SERVICE_LABEL,
    UPDATE_REQUESTED_ANNOTATION,
)
from llmservice_api.errors import checked_reader
from llmservice_api.holding import SERVICE_NAME_LABEL, Activator, Activators
from llmservice_api.service import STATED_BY, spec_text, stated_by
from llmservice_planner.room import PlacedPod

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.facts.routes import Claim, HTTPRouteFacts, Pair
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe import observed
from llmservice_operator.service.containment import InternalErrors, Part

logger = logging.getLogger(__name__)

JSON = Mapping[str, Any]

_IDENTITY = ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
"""Metadata of an LLMService that are kept."""


@dataclass(frozen=True, slots=True)
class ParentFacts:
    """An LLMService from the watch, without what no decision reads."""

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    deleting: bool
    content: JSON
    obj: JSON = field(compare=False, repr=False)

    @property
    def service(self) -> str:
        """Its own name."""
        return self.name

    @classmethod
    def from_object(cls, obj: JSON, known: ParentFacts | None = None) -> ParentFacts:
        """Project one LLMService. A status that `known` has, from an earlier version or of the operator's own, is not
        validated again: that is most of the time this takes."""
        metadata = obj["metadata"]
        annotations = metadata.get("annotations") or {}
        spec = spec_text(obj.get("spec"))
        kept = {name: metadata[name] for name in _IDENTITY if name in metadata}
        requested = untrusted.annotation(annotations.get(UPDATE_REQUESTED_ANNOTATION))
        status = obj.get("status")
        status = known.obj["status"] if known and status == known.obj["status"] else untrusted.stored_status(status)
        # Only needed for an autoscaled service: managedFields are as large as the spec.
        stated = stated_by(metadata) if b'"autoscaling"' in spec else None
        if requested is not None:
            kept["annotations"] = {UPDATE_REQUESTED_ANNOTATION: requested}
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            deleting="deletionTimestamp" in metadata,
            content={
                "generation": metadata.get("generation"),
                "requested": requested,
                "spec": spec,
                "stated": stated,
                "status": status,
            },
            obj={
                "apiVersion": LLMSERVICE.api_version,
                "kind": LLMSERVICE.kind,
                "metadata": kept,
                "spec": spec,
                STATED_BY: stated,
                "status": status,
            },
        )

    def with_status(self, status: JSON) -> ParentFacts:
        return replace(self, content={**self.content, "status": status}, obj={**self.obj, "status": status})


PARENT = LLMSERVICE.kind


def key_of(parent: ParentFacts) -> Key:
    return Key(parent.namespace, parent.name)


def may_hold(parent: ParentFacts) -> bool:
    """Whether its requests may be held; also True for some others, whose next decision changes nothing."""
    spec: bytes = parent.obj["spec"]
    return b'"rollouts":true' in spec or (b'"autoscaling"' in spec and b'"minReplicas":0' in spec)


PROJECTIONS: Mapping[str, Project] = {PARENT: checked_reader(PARENT, ParentFacts.from_object), **observed.PROJECTIONS}
"""Each raises UnreadableObject for an object without its kind's shape; the cache then keeps the earlier state."""

WATCHED: tuple[Resource, ...] = tuple(BY_KIND[kind] for kind in PROJECTIONS)
CHILD_RESOURCES: tuple[Resource, ...] = tuple(resource for resource in WATCHED if resource is not LLMSERVICE)


def watched_children(settings: Settings) -> tuple[Resource, ...]:
    """Kinds of children that services have with these settings."""
    unused = {child.kind for child in CHILD_KINDS if child.setting and not getattr(settings, child.setting)}
    if not settings.has_groups:
        unused.add(LEADER_WORKER_SET.kind)
    if not settings.has_dynamic_resources:
        unused.add(RESOURCE_CLAIM_TEMPLATE.kind)
    return tuple(resource for resource in CHILD_RESOURCES if resource.kind not in unused)


def selector(resource: Resource) -> str:
    """Label selector of the watch; none for LLMServices.

    Inspection pods are not replicas and lack the service label, so pods are selected by the managed-by label.
    """
    if resource is resources.POD:
        return f"{MANAGED_BY_LABEL}={OPERATOR}"
    return "" if resource is LLMSERVICE else SERVICE_LABEL


def _inspected(parent: Any) -> tuple[Hashable, ...]:
    """The model whose facts a service's status has, for reuse by other services of the namespace."""
    model = parent.obj["status"].get("model") or {}
    found = model.get("inspection")
    return ((parent.namespace, found),) if found and model.get("config") else ()


def _claimed(route: Any) -> frozenset[Hashable]:
    """What the route of a service takes."""
    return frozenset(key for claim in route.claims for key in claim.keys)


INDICES: Mapping[str, Index] = {PARENT: _inspected, HTTP_ROUTE.kind: _claimed}


def identity_of(cache: Cache, key: Key) -> str:
    """uid and generation of an LLMService; empty if there is none."""
    parent: ParentFacts | None = cache.get(PARENT, *key)
    return "" if parent is None else f"{parent.uid}/{parent.content['generation'] or 0}"


def rivals_of(
    cache: Cache, asked: Iterable[Claim], has: Iterable[Claim], key: Key, written: Mapping[Key, Iterable[Claim]]
) -> dict[Pair, Key]:
    """Services whose routes take some of the `asked` requests, by these; not of those that the asking service `key`
    `has`. `written`: routes that are being written. Routes that no LLMService of this operator has, or that their
    Gateway rejects, keep nobody out: anybody may write some.

    The time it takes grows with the hosts that are asked for and the routes that have some of these."""
    found: dict[Pair, Key] = {}
    for claim in asked:
        known = [each for each in has if (each.gateway, each.listener) == (claim.gateway, claim.listener)]
        new = {host: claim.models.difference(*(it.models for it in known if host in it.hosts)) for host in claim.hosts}
        near = claim.near(host for host, models in new.items() if models)
        for other, hosts, models in _rivals(cache, claim, near, key, written):
            for host in hosts & new.keys():
                found |= {Pair(host, model): other for model in new[host] & models}
                new[host] -= models
    return found


def _rivals(
    cache: Cache, claim: Claim, near: Iterable[Hashable], key: Key, written: Mapping[Key, Iterable[Claim]]
) -> list[tuple[Key, frozenset[str], frozenset[str]]]:
    """With the hosts and models of `claim` that they have; of two for the same always the same one is first."""
    routes = {Key(route.namespace, route.name): route for at in near for route in cache.indexed(HTTP_ROUTE.kind, at)}
    held = [(other, claims, None) for other, claims in written.items()]
    held += [(Key(route.namespace, route.service), route.claims, route) for route in routes.values()]
    found = []
    for other, claims, route in held:
        if other == key:
            continue
        for each in claims:
            hosts, models = claim.shared(each, is_same_team=other.namespace == key.namespace)
            if hosts and models and (route is None or _counts(cache, route, other)):
                found.append((other, hosts, models))
    return sorted(found, key=lambda each: each[0])


def _counts(cache: Cache, route: HTTPRouteFacts, holder: Key) -> bool:
    owner = cache.get(PARENT, *holder)
    return owner is not None and route.owner_uid == owner.uid and not route.is_rejected


def placed(cache: Cache) -> Iterator[PlacedPod]:
    """Scheduled pods of all watched services."""
    for facts in cache.all_of(resources.POD.kind):
        if isinstance(facts, PodFacts) and facts.node and facts.phase not in ("Succeeded", "Failed"):
            yield PlacedPod(facts.node, facts.asked, facts.namespace, facts.service or facts.name)


def priority_of_service(parent: ParentFacts | None) -> Priority:
    """Priority of an LLMService that changed, or that is found at a start.

    The same for both: edits made while no operator ran come before thousands of steady services.
    """
    if parent is None or parent.deleting:
        return Priority.REST
    if has_no_status(parent):
        return Priority.NEW
    return (
        Priority.REST if parent.obj["status"]["observedGeneration"] == parent.content["generation"] else Priority.EDITED
    )


def priority_after_child(parent: ParentFacts | None) -> Priority:
    if parent is None or parent.deleting:
        return Priority.REST
    conditions = parent.obj["status"].get("conditions") or ()
    serves = any((c.get("type"), c.get("status")) == (ConditionType.AVAILABLE, "True") for c in conditions)
    return Priority.SERVES if serves else Priority.REST


def has_no_status(parent: ParentFacts) -> bool:
    """Whether no status was ever written: observedGeneration is absent, or the CRD's default, -1."""
    return bool(parent.obj["status"].get("observedGeneration", -1) < 0)


class _Unreadable(NamedTuple):
    """An object that could not be projected, and its open error."""

    seen: Seen
    key: Key | None
    subject: str


class EventHandler:
    """A `kubeloop.informer.ResourceEventHandler` for all kinds, also for kopf's watch of LLMServices."""

    def __init__(
        self,
        cache: Cache,
        changed: Callable[[Key], None],
        children_changed: Callable[[Key], None],
        errors: InternalErrors | None = None,
        pod_deleted: Callable[[PodFacts], None] = lambda pod: None,
    ) -> None:
        """`pod_deleted` gets the last state of a service's deleted pod: it may vanish before a pass of its service."""
        self.cache = cache
        self._changed, self._children_changed, self._pod_deleted = changed, children_changed, pod_deleted
        self._errors = errors or InternalErrors()
        self._unreadable: dict[tuple[str, str, str], _Unreadable] = {}
        """By kind, namespace and name: the cache lacks these, or has an earlier version."""

    def updated(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """An object was added or changed. An unreadable one is recorded as an internal error, once per version."""
        key, subject = _about(resource, obj)
        metadata = obj.get("metadata") or {}
        where = resource.kind, metadata.get("namespace", ""), metadata.get("name", "")
        known = Seen(metadata.get("uid", ""), metadata.get("resourceVersion", ""))
        before = self._unreadable.get(where)
        if before is not None and before.seen == known:
            return
        with self._errors.contained(Part.PROJECTION, key, subject) as contained:
            self._enqueue(resource, self.cache.update(resource.kind, obj))
        self._unreadable.pop(where, None)
        if before is not None and before.key != key:
            self._ended(before)
        if contained.failed:
            self._unreadable[where] = _Unreadable(known, key, subject)

    def deleted(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if resource is POD and self._is_known(obj):
            self.updated(resource, obj)
        key, subject = _about(resource, obj)
        with self._errors.contained(Part.PROJECTION, key, subject) as contained:
            metadata = obj["metadata"]
            where = metadata["namespace"], metadata["name"]
            before = self._unreadable.pop((resource.kind, *where), None)
            if before is not None:
                self._ended(before)
            self._remove(resource, *where, metadata["uid"])
        if key is not None and not contained.failed:
            self._errors.ended(Part.PROJECTION, key, subject)

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        """Remove what the list lacks and is not newer: its deletion was missed."""
        for where, seen in self.cache.seen(resource.kind, namespace).items():
            if uids.get(where) != seen.uid and not newer(seen.resource_version, version):
                self._remove(resource, *where, seen.uid)
        for (kind, place, name), before in list(self._unreadable.items()):
            is_meant = kind == resource.kind and namespace in (None, place)
            if (
                is_meant
                and uids.get((place, name)) != before.seen.uid
                and not newer(before.seen.resource_version, version)
            ):
                self._ended(self._unreadable.pop((kind, place, name)))

    def _is_known(self, pod: Mapping[str, Any]) -> bool:
        """Whether the cache has the pod with this uid, not a later one of the same name."""
        metadata = pod.get("metadata") or {}
        known = self.cache.get(POD.kind, metadata.get("namespace", ""), metadata.get("name", ""))
        return known is not None and known.uid == metadata.get("uid")

    def _remove(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        last = self.cache.get(resource.kind, namespace, name)
        keys = self.cache.remove(resource.kind, namespace, name, uid)
        if keys and isinstance(last, PodFacts):
            self._pod_deleted(last)
        self._enqueue(resource, keys)

    def _ended(self, unreadable: _Unreadable) -> None:
        if unreadable.key is not None:
            self._errors.ended(Part.PROJECTION, unreadable.key, unreadable.subject)

    def _enqueue(self, resource: Resource, keys: Iterable[Key]) -> None:
        enqueue = self._changed if resource is LLMSERVICE else self._children_changed
        for key in keys:
            enqueue(key)


def _about(resource: Resource, obj: Mapping[str, Any]) -> tuple[Key | None, str]:
    """The service that an object belongs to by its labels (None: none), and its name in an error."""
    metadata = obj.get("metadata") or {}
    labels = metadata.get("labels") or {}
    name = metadata.get("name", "")
    service = name if resource is LLMSERVICE else labels.get(SERVICE_LABEL) or labels.get(INSPECTS_LABEL)
    return (Key(metadata.get("namespace", ""), service) if service else None), f"of {resource.kind} {name}"


DISPENSABLE = (JOB, ENDPOINT_SLICE)
"""Optional for services: without them models are not inspected, and a ready pod counts as serving."""
TRIES = 3
"""Refusals in a row after which such a kind is hidden: a starting API server may refuse for some seconds."""


class ChildrenWatch:
    """One informer per kind and namespace; each reports to `sync`."""

    def __init__(
        self,
        transport: Transport,
        handler: EventHandler,
        namespaces: Iterable[str | None],
        sync: SyncState,
        kinds: Sequence[Resource] = CHILD_RESOURCES,
    ) -> None:
        self._informers = [
            (resource, Informer(transport, resource, namespace, selector(resource), handler, report=report.update))
            for namespace in namespaces
            for resource in kinds
            for report in [_SyncReport(sync, namespace, resource)]
        ]

    async def run(self) -> None:
        """Watch; never returns."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers:
                group.create_task(informer.run(), name=f"watch of {resource.plural}")


class _SyncReport:
    """Turns reports of one informer into the state of its kind."""

    def __init__(self, sync: SyncState, namespace: str | None, resource: Resource) -> None:
        self._sync, self._namespace, self._resource = sync, namespace, resource
        self._refusals = 0

    def update(self, error: KubeError | None) -> None:
        """None: it is synced."""
        if error is None:
            self._refusals = 0
            self._sync.show(self._namespace, self._resource)
        elif not self._can_go_without(error):
            self._sync.failed(self._namespace, self._resource.full_name, error)
        else:
            self._refusals += 1
            if self._refusals == TRIES:
                logger.warning("going on without %s until they may be listed: %s", self._resource.plural, error)
            if self._refusals >= TRIES:
                self._sync.hide(self._namespace, self._resource)

    def _can_go_without(self, error: KubeError) -> bool:
        if isinstance(error, NotFound):
            return self._resource in OPTIONAL
        return isinstance(error, Forbidden) and self._resource in (*DISPENSABLE, *OPTIONAL)


MOST = 64
"""Endpoints that are read of one slice."""
LONGEST_NODE = 253
GRACE_SECONDS = 15.0
"""Seconds for which the last activator may be missing: each service at zero would otherwise start after a short loss of
a node. Longer than an activator takes to become ready again."""
ACTIVATOR_TRIES = 3
"""Refusals in a row after which there are no activators: a starting API server may refuse for some seconds."""


class ActivatorsWatch:
    """Watches the EndpointSlices of a Service; `changed` is called whenever `known` changes."""

    def __init__(
        self, transport: Transport, name: str, namespace: str, changed: Callable[[], None], grace: float = GRACE_SECONDS
    ) -> None:
        selector = f"{SERVICE_NAME_LABEL}={name}"
        self._informer = Informer(transport, ENDPOINT_SLICE, namespace, selector, self, report=self._reported)
        self._changed, self._grace = changed, grace
        self._slices: dict[tuple[str, str], tuple[Activator, ...]] = {}
        self._is_synced = False
        self._refusals = 0
        self._known: Activators = None
        self._away: asyncio.TimerHandle | None = None

    def known(self) -> Activators:
        """The activators; the same object while the value is unchanged."""
        return self._known

    async def run(self) -> None:
        """Watch; never returns."""
        await self._informer.run()

    def updated(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        self._slices[_where(obj)] = tuple(ready_activators(obj))
        self._update_known()

    def deleted(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        self._slices.pop(_where(obj), None)
        self._update_known()

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        self._slices = {where: found for where, found in self._slices.items() if where in uids}
        self._is_synced = True
        self._update_known()

    def _reported(self, error: KubeError | None) -> None:
        if error is None:
            self._refusals = 0
        elif isinstance(error, Forbidden | NotFound):
            self._refusals += 1
            if self._refusals == ACTIVATOR_TRIES:
                logger.warning("no service can be at zero, since the activators cannot be listed: %s", error)
                self._is_synced = True
        self._update_known()

    def _update_known(self) -> None:
        """Update `known`: at once while there are activators; that there is none only once it lasts."""
        if not self._is_synced:
            return
        seen = {each for some in self._slices.values() for each in some}
        found = tuple(sorted(seen)) if self._refusals < ACTIVATOR_TRIES else ()
        if found:
            self._stop_waiting()
            if found != self._known:
                self._take(found)
        elif self._known != ():
            if self._known is not None:
                self._take(None)
            if self._away is None:
                self._away = asyncio.get_running_loop().call_later(self._grace, self._are_gone)

    def _are_gone(self) -> None:
        self._away = None
        logger.warning("no activator is ready: services at zero get a replica")
        self._take(())

    def _stop_waiting(self) -> None:
        if self._away is not None:
            self._away.cancel()
            self._away = None

    def _take(self, known: Activators) -> None:
        self._known = known
        self._changed()


def ready_activators(slice_: Mapping[str, Any]) -> Iterator[Activator]:
    """Endpoints of a slice that are ready and not terminating. Slices are untrusted."""
    endpoints = slice_.get("endpoints")
    for endpoint in endpoints[:MOST] if isinstance(endpoints, list) else ():
        found = _activator(endpoint) if isinstance(endpoint, Mapping) else None
        if found is not None:
            yield found


def _activator(endpoint: Mapping[str, Any]) -> Activator | None:
    conditions, addresses = endpoint.get("conditions"), endpoint.get("addresses")
    states = conditions if isinstance(conditions, Mapping) else {}
    # In the API, absent means ready.
    if states.get("ready") is False or states.get("terminating") is True:
        return None
    given = addresses[0] if isinstance(addresses, list) and addresses else None
    if not isinstance(given, str) or "%" in given:  # a zone may be any text, and the address goes into a URL
        return None
    try:
        address = str(ipaddress.ip_address(given))
    except ValueError:
        return None
    node = endpoint.get("nodeName")
    return Activator(address, node if isinstance(node, str) and len(node) <= LONGEST_NODE else "")


def _where(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
