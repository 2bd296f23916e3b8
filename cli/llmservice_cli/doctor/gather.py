"""Reads the facts: a request or a bounded list for each field of Facts, all of them at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kubeloop.errors import KubeError, NotFound, Unauthorized, lacks_right
from kubeloop.resources import CONFIG_MAP, DEPLOYMENT, ENDPOINT_SLICE, LEASE, POD, RESOURCE_QUOTA, SERVICE, Resource
from llmservice_api.constants import (
    BY_KIND,
    CRD_NAME,
    ENDPOINT_PICKER_PORT,
    LEADER_WORKER_SET,
    LLMSERVICE,
    SERVICE_LABEL,
    endpoint_picker_name,
)
from llmservice_operator.options import version
from llmservice_operator.readers.nodes import NODE

from llmservice_cli.api import Api, Json
from llmservice_cli.cluster import line_of
from llmservice_cli.installation import ACTIVATORS, NAMESPACE, Releases, is_of_chart, releases
from llmservice_cli.progress import Steps
from llmservice_cli.settings import lease_names

from . import dns
from .access import INSTALLING, TEAM, blocking, service_of
from .facts import Facts, Objects, Right, Unread, places_of

MOST = 5_000
"""Objects of one list; a page is held at a time, without what no check reads."""
MOST_HOOKS = MOST_PICKERS = 50
MOST_CONFIGS = 8
KEDA = "app.kubernetes.io/name=keda-operator"
SCALED_OBJECT = BY_KIND["ScaledObject"]
_CRD = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
_STORAGE_CLASS = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
_DEVICE_CLASS = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass")
_HOOKS = "admissionregistration.k8s.io"
_VALIDATING = Resource(_HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
_MUTATING = Resource(_HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
_NAMESPACE = Resource("", "v1", "namespaces", "Namespace")
_LIMIT_RANGE = Resource("", "v1", "limitranges", "LimitRange")
_ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
_REVIEW = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")


class Read(NamedTuple):
    """What came of one source."""

    objects: Objects = ()
    unread: Unread | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A list; `otherwise` is the namespace that is listed where all of them may not be."""

    resource: Resource
    namespace: str | None = None
    selector: str = ""
    otherwise: str | None = None
    is_of_operator: bool = False
    """Anybody may give objects the chart's label: only those where an operator is known to be installed count."""


def sources(namespace: str, operators: str) -> Mapping[str, ListQuery]:
    """By field of Facts; `operators` selects what is of an operator."""

    def of_operator(resource: Resource, selector: str) -> ListQuery:
        return ListQuery(resource, None, selector, NAMESPACE, is_of_operator=True)

    return {
        "operators": of_operator(DEPLOYMENT, operators),
        "operator_pods": of_operator(POD, operators),
        "activators": of_operator(DEPLOYMENT, ACTIVATORS),
        "activator_pods": of_operator(POD, ACTIVATORS),
        "settings": of_operator(CONFIG_MAP, operators),
        "keda": ListQuery(DEPLOYMENT, None, KEDA, "keda"),
        "nodes": ListQuery(NODE),
        "storage_classes": ListQuery(_STORAGE_CLASS),
        "device_classes": ListQuery(_DEVICE_CLASS),
        "validating": ListQuery(_VALIDATING),
        "mutating": ListQuery(_MUTATING),
        "quotas": ListQuery(RESOURCE_QUOTA, namespace),
        "limits": ListQuery(_LIMIT_RANGE, namespace),
        "pods": ListQuery(POD, namespace, SERVICE_LABEL),
        "services": ListQuery(LLMSERVICE, None, "", namespace),
    }


def singles(namespace: str) -> Mapping[str, tuple[Resource, str]]:
    """Objects without a namespace, by field of Facts."""
    return {
        "crd": (_CRD, CRD_NAME),
        "keda_crd": (_CRD, f"{SCALED_OBJECT.plural}.{SCALED_OBJECT.group}"),
        "lws_crd": (_CRD, f"{LEADER_WORKER_SET.plural}.{LEADER_WORKER_SET.group}"),
        "namespaces": (_NAMESPACE, namespace),
    }


async def gather(kube: Api, namespace: str, steps: Steps | None = None) -> Facts:
    """All of it, each read a step. KubeError where not even the version is answered, or the credentials are refused."""
    version_found = await kube.version()
    installed = await releases(kube)
    lists, named_ones = sources(namespace, installed.selector), singles(namespace)
    steps = steps or Steps("")
    reads = {field: _listed(kube, source) for field, source in lists.items()}
    reads |= {field: _single(kube, *each) for field, each in named_ones.items()}
    steps.of += len(reads)
    every = asyncio.gather(*map(steps.counted, reads.values()))
    (user, now), rights, found = await asyncio.gather(_who(kube), _rights(kube, namespace), every)
    read = dict(zip(reads, found, strict=True))
    for field, source in lists.items():
        if source.is_of_operator:
            own = tuple(each for each in read[field].objects if _is_own(each, installed, source))
            read[field] = read[field]._replace(objects=own)
    hooks = await _ready_hooks(kube, (*read["validating"].objects, *read["mutating"].objects))
    read["operator_namespaces"] = await _namespaces(kube, places_of(read["operators"].objects))
    read["leases"] = await _leases(kube, read["settings"], read["operators"])
    read["pickers"] = await _pickers(kube, namespace, read["services"].objects)
    if any(dns.is_routed(each, namespace) for each in read["services"].objects):
        read["dns"] = await _dns(kube)
    unread = {field: each.unread for field, each in read.items() if each.unread is not None}
    if isinstance(rights, Unread):
        unread["rights"], rights = rights, {}
    objects: dict[str, Any] = {field: each.objects for field, each in read.items()}
    return Facts(
        program=version(),
        now=now,
        namespace=namespace,
        kubernetes=str(version_found.get("gitVersion") or ""),
        user=user,
        rights=rights,
        ready_hooks=hooks,
        unread=unread,
        cut=frozenset(field for field, each in read.items() if each.is_cut),
        **objects,
    )


def _is_own(found: Json, installed: Releases, source: ListQuery) -> bool:
    is_there = not installed.namespaces or found["metadata"].get("namespace") in installed.namespaces
    if source.resource == CONFIG_MAP:  # dashboards have one with the same labels
        files = found.get("data") or {}
        return is_there and not (files and all(name.endswith(".json") for name in files))
    return is_there and (source.selector != ACTIVATORS or is_of_chart(found))


async def _listed(kube: Api, source: ListQuery) -> Read:
    try:
        return await _pages(kube, source, source.namespace)
    except KubeError as error:
        if source.otherwise is None or not lacks_right(error):
            return Read(unread=_unread(error, source))
    try:
        return await _pages(kube, source, source.otherwise)
    except KubeError as error:
        return Read(unread=_unread(error, source))


async def _pages(kube: Api, source: ListQuery, namespace: str | None) -> Read:
    """A kind that the API server does not have has no objects."""
    kept: list[Json] = []
    try:
        pages: AsyncIterator[Json] = kube.list_pages(source.resource, namespace, label_selector=source.selector)
        async for page in pages:
            kept += map(_lean, page.get("items") or ())
            if len(kept) > MOST:
                return Read(tuple(kept[:MOST]), is_cut=True)
    except NotFound:
        return Read()
    return Read(tuple(kept))


def _lean(found: Json) -> Json:
    """Without what takes most room in large clusters."""
    metadata = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    lean = {**found, "metadata": metadata}
    if isinstance(found.get("status"), dict):
        lean["status"] = {name: value for name, value in found["status"].items() if name != "images"}
    return lean


async def _single(kube: Api, resource: Resource, name: str) -> Read:
    try:
        found = await kube.cluster_object(resource, name)
    except KubeError as error:
        return Read(unread=_unread(error, ListQuery(resource), verb="get"))
    return Read(() if found is None else (_lean(found),))


async def _namespaces(kube: Api, wanted: Sequence[str]) -> Read:
    """Those that exist; unread where one of them may not be read."""
    found = await asyncio.gather(*(_single(kube, _NAMESPACE, name) for name in wanted))
    unread = next((each.unread for each in found if each.unread is not None), None)
    return Read(tuple(one for each in found for one in each.objects), unread)


async def _pickers(kube: Api, namespace: str, services: Objects) -> Read:
    """Of the namespace's services with a pool."""
    pools = [each for each in services if each["metadata"].get("namespace") == namespace and _routing(each)]
    found = await asyncio.gather(*(_picker(kube, namespace, each) for each in pools[:MOST_PICKERS]))
    return Read(tuple(found), is_cut=len(pools) > MOST_PICKERS)


async def _dns(kube: Api) -> Read:
    found = await asyncio.gather(*(_named(kube, CONFIG_MAP, "kube-system", name) for name in dns.CONFIGS))
    unread = next((each.unread for each in found if each.unread is not None), None)
    return Read(tuple(one for each in found for one in each.objects), unread)


def _routing(service: Json) -> Json:
    """Of one with a pool; else empty."""
    routing: Json = (service.get("spec") or {}).get("routing") or {}
    return routing if routing.get("mode") == "pool" else {}


async def _picker(kube: Api, namespace: str, service: Json) -> Json:
    named = _routing(service).get("endpointPicker") or {}
    name = named.get("name") or endpoint_picker_name(service["metadata"]["name"])
    address, pods = await _named(kube, SERVICE, namespace, name), Read()
    selector = ((address.objects[0].get("spec") or {}).get("selector") or {}) if address.objects else {}
    if selector:
        selected = ",".join(f"{key}={value}" for key, value in selector.items())
        pods = await _listed(kube, ListQuery(POD, namespace, selected))
    volumes = [one for pod in pods.objects[:1] for one in (pod.get("spec") or {}).get("volumes") or ()]
    mounted = [one["configMap"]["name"] for one in volumes if (one.get("configMap") or {}).get("name")]
    configs = await asyncio.gather(*(_named(kube, CONFIG_MAP, namespace, one) for one in mounted[:MOST_CONFIGS]))
    return {
        "service": service,
        "name": name,
        "port": named.get("port") or ENDPOINT_PICKER_PORT,
        "address": next(iter(address.objects), None),
        "pods": pods.objects,
        "configs": tuple(one for each in configs for one in each.objects),
        "unread": next((each.unread for each in (address, pods, *configs) if each.unread is not None), None),
    }


async def _named(kube: Api, resource: Resource, namespace: str, name: str) -> Read:
    try:
        found = await kube.get(resource, namespace, name)
    except KubeError as error:
        return Read(unread=_unread(error, ListQuery(resource, namespace), verb="get"))
    return Read(() if found is None else (_lean(found),))


async def _leases(kube: Api, settings: Read, operators: Read) -> Read:
    """Those that the operators' settings name, else those that are named like their Deployments."""
    wanted = lease_names(settings.objects, operators.objects)
    try:
        found = [await kube.get(LEASE, namespace, name) for namespace, name in wanted]
    except KubeError as error:
        return Read(unread=_unread(error, ListQuery(LEASE, wanted[0][0]), verb="get"))
    return Read(tuple(each for each in found if each is not None))


async def _ready_hooks(kube: Api, configurations: Objects) -> Mapping[tuple[str, str], int]:
    """Of those whose EndpointSlices may be listed."""
    asked = list(dict.fromkeys(service_of(hook) for _, hook in blocking(configurations)))[:MOST_HOOKS]
    services = [each for each in asked if all(each)]
    counts = await asyncio.gather(*(_ready_endpoints(kube, *each) for each in services))
    return {each: count for each, count in zip(services, counts, strict=True) if count is not None}


async def _ready_endpoints(kube: Api, namespace: str, name: str) -> int | None:
    source = ListQuery(ENDPOINT_SLICE, namespace, f"kubernetes.io/service-name={name}")
    read = await _listed(kube, source)
    if read.unread is not None:
        return None
    endpoints = [one for each in read.objects for one in each.get("endpoints") or ()]
    return sum((one.get("conditions") or {}).get("ready") is not False for one in endpoints)


async def _who(kube: Api) -> tuple[str, datetime]:
    """The user's name, and the API server's time; an old API server tells neither."""
    try:
        found = await kube.review(_REVIEW, {})
        user = str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "")
        return line_of(user), datetime.fromisoformat(found["metadata"]["creationTimestamp"])
    except Unauthorized:
        raise
    except (KubeError, KeyError, TypeError, ValueError):
        return "", datetime.now(UTC)


async def _rights(kube: Api, namespace: str) -> Mapping[Right, bool] | Unread:
    asked = [replace(right, namespace=namespace) for right in TEAM] + [*INSTALLING]
    try:
        allowed = await asyncio.gather(*(_may(kube, right) for right in asked))
    except KubeError as error:
        return _unread(error, ListQuery(_ACCESS_REVIEW), verb="create")
    return dict(zip(asked, allowed, strict=True))


async def _may(kube: Api, right: Right) -> bool:
    attributes: dict[str, Any] = {"verb": right.verb, "group": right.group, "resource": right.resource}
    if right.subresource:
        attributes["subresource"] = right.subresource
    if right.namespace is not None:
        attributes["namespace"] = right.namespace
    found = await kube.review(_ACCESS_REVIEW, {"resourceAttributes": attributes})
    return (found.get("status") or {}).get("allowed") is True


def _unread(error: KubeError, source: ListQuery, verb: str = "list") -> Unread:
    """With the right that is missing, where it is one."""
    if isinstance(error, Unauthorized):
        raise error
    if lacks_right(error):
        where = f"in the namespace {source.namespace}" if source.namespace else ""
        if not where:
            where = "in all namespaces" if source.otherwise else ""
        right = f"{verb} {source.resource.full_name} {where}".strip()
        return Unread(f"you have no right to {right}", f"have somebody grant it, or run this who has it: {right}")
    return Unread(f"not read: {line_of(error.message)}", "run it again; see the API server's log if it stays")
