"""Reads what belongs into a bundle, of one LLMService and of the operator, and writes it: files without secrets,
bounded, with a README.md, as one .tar.gz.
"""

from __future__ import annotations

import asyncio
import io
import re
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kubeloop import resources
from kubeloop.errors import KubeError, NotFound
from kubeloop.resources import EVENT, POD, Resource
from llmservice_api.constants import (
    BY_KIND,
    CRD_NAME,
    INSPECTS_LABEL,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
    OPERATOR,
    RESOURCE_CLAIM_TEMPLATE,
    SERVICE_LABEL,
    selector_text,
)
from llmservice_operator.options import version
from llmservice_runtime.bounded_json import Refused, clean, parse
from llmservice_runtime.contract import HTTP_PORT, METRICS_PATH, STATE_PATH, STATE_PORT

from llmservice_cli.api import Api, Json, container_statuses, labels_of, name_of, nodes_of, status_of
from llmservice_cli.cluster import why
from llmservice_cli.doctor.command import CHECKS, document
from llmservice_cli.doctor.facts import Facts, images_of, results
from llmservice_cli.documents import written
from llmservice_cli.installation import ACTIVATORS, NAME_LABEL, NAMESPACE, PAGES, selector_of
from llmservice_cli.progress import Steps
from llmservice_cli.services import service

from .redaction import Cleaner

# What is in a bundle before secrets are taken out, as values.

Read = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: an object, written as YAML, or a text. `path` is below the bundle's folder."""

    path: str
    what: str
    content: Any


@dataclass(frozen=True, slots=True)
class Planned:
    """A text that is read once it is known that a bundle is written."""

    namespace: str
    """In which it needs a right."""
    path: str
    what: str
    read: Read


@dataclass(frozen=True, slots=True)
class Gap:
    """What could not be read, or was left out, and why."""

    what: str
    why: str


@dataclass(slots=True)
class Material:
    """Filled while it is collected."""

    entries: list[Entry] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


MOST_BYTES = 32 * 2**20
"""Of all files together, before they are compressed."""
README = "README.md"
_UNSAFE = re.compile(r"[^\w./-]|\.\.")
_ROOM = 64 * 1024
"""Bytes for the README.md."""


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is written."""

    path: str
    what: str
    content: bytes


def files(entries: Sequence[Entry], gaps: list[Gap], most: int = MOST_BYTES) -> list[File]:
    """All without secrets, those after the limit cut to what has room, which is added to `gaps`."""
    texts = [entry.content for entry in entries if isinstance(entry.content, str)]
    cleaner = Cleaner([entry.content for entry in entries if not isinstance(entry.content, str)], texts)
    left = most - _ROOM
    found = []
    for entry in entries:
        if left <= 0:
            gaps.append(Gap(entry.path, "left out: the bundle has no room for more"))
            continue
        is_text = isinstance(entry.content, str)
        text = cleaner.text(entry.content) if is_text else written("yaml", cleaner.object(entry.content))
        content = clean(text).encode(errors="replace")
        if len(content) > left:
            gaps.append(Gap(entry.path, f"cut to {left:,} of {len(content):,} bytes: the bundle has no room for more"))
            content = content[-left:] if is_text else b""
        if content or not is_text:
            found.append(File(_UNSAFE.sub("_", entry.path), entry.what, content))
        left -= len(content)
    for index, gap in enumerate(gaps):
        gaps[index] = Gap(clean(cleaner.text(gap.what)), clean(cleaner.text(gap.why)))
    return found


def readme(title: str, found: Iterable[File], gaps: Iterable[Gap]) -> str:
    """What each file is, what is missing, and what was taken out."""
    rows = "".join(f"| {file.path} | {file.what} | {len(file.content):,} |\n" for file in found)
    missing = "".join(f"- {gap.what}: {gap.why}\n" for gap in gaps) or "- nothing\n"
    text = (
        f"# {title}\n\n"
        "Made by `llmservice report`. Values that look like secrets are replaced by `***`; Secrets were not read.\n"
        "Logs may still hold what programs write: names, addresses, prompts.\n\n"
        f"| file | what | bytes |\n|-|-|-:|\n{rows}\n"
        f"## What is missing\n\n{missing}"
    )
    return text if len(text.encode()) <= _ROOM else text.encode()[:_ROOM].decode(errors="ignore") + "\n(cut)\n"


def archive(folder: str, found: Iterable[File], moment: float) -> bytes:
    """A .tar.gz in which all files are in one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for file in found:
            member = tarfile.TarInfo(f"{folder}/{file.path}")
            member.size, member.mtime, member.mode = len(file.content), int(moment), 0o600
            bundle.addfile(member, io.BytesIO(file.content))
    return buffer.getvalue()


# Lists, logs and pages, each bounded; what cannot be read becomes a gap.

MOST_OBJECTS = 500
"""Of one kind."""
MOST_LOOKED_AT = 5_000
"""Objects of the namespace, Events among them, of which those of the service are kept."""
_LOOKED_AT = f"the first {MOST_LOOKED_AT} of the namespace were looked at"
MOST_PODS = 20
"""Whose logs and pages are read."""
MOST_LOG_BYTES = MOST_PAGE_BYTES = 2 * 2**20
"""Of one."""
FEWEST_LINES = 50
AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Page:
    """What pods answer to GET, and its file's ending."""

    port: int
    path: str
    file: str
    what: str


async def listed(
    kube: Api,
    material: Material,
    resource: Resource,
    namespace: str,
    selector: str = "",
    folder: str = "objects",
    belongs: Callable[[Json], bool] = lambda one: True,
) -> tuple[Json, ...]:
    """The objects, each as an entry; none where the kind does not exist or may not be listed, which is a gap."""
    found: list[Json] = []
    try:
        async for items in _looked_at(kube, material, resource, namespace, selector):
            found += filter(belongs, items)
            if len(found) > MOST_OBJECTS:
                material.gaps.append(Gap(f"further {resource.plural}", f"only the first {MOST_OBJECTS} are kept"))
                break
    except NotFound:
        return ()
    except KubeError as error:
        material.gaps.append(Gap(resource.plural, why(error, namespace)))
    kept = tuple({**one, "apiVersion": resource.api_version, "kind": resource.kind} for one in found[:MOST_OBJECTS])
    for one in kept:
        add_object(material, one, folder)
    return kept


async def _looked_at(
    kube: Api, material: Material, resource: Resource, namespace: str, selector: str = ""
) -> AsyncIterator[Sequence[Json]]:
    """The objects, by page; where there are more than are looked at, that is a gap."""
    seen = 0
    async for page in kube.list_pages(resource, namespace, label_selector=selector):
        items = page.get("items") or ()
        seen += len(items)
        yield items
        if seen >= MOST_LOOKED_AT and page.get("metadata", {}).get("continue"):
            material.gaps.append(Gap(f"further {resource.plural}", _LOOKED_AT))
            return


def add_object(material: Material, one: Json, folder: str = "objects") -> None:
    kind, name = one["kind"], one["metadata"]["name"]
    material.entries.append(Entry(f"{folder}/{kind.lower()}-{name}.yaml", f"{kind} {name}", one))


async def events(kube: Api, material: Material, namespace: str, about: Iterable[Json], folder: str = "") -> None:
    """Those of the namespace that are about these objects, the oldest first. `folder` ends with a slash."""
    known = {(one["kind"], one["metadata"]["name"]) for one in about}
    found: list[Json] = []
    try:
        async for items in _looked_at(kube, material, EVENT, namespace):
            found += (one for one in items if _subject(one) in known)
    except KubeError as error:
        material.gaps.append(Gap("Events", why(error, namespace)))
        return
    ordered = sorted(found, key=_moment)
    lines = [
        f"{_moment(one)}  {one.get('type')}  {'/'.join(_subject(one))}  {one.get('reason')}  x{one.get('count') or 1}  "
        f"{clean(str(one.get('message') or ''))}".replace("\n", " ")
        for one in ordered
    ]
    material.entries.append(
        Entry(f"{folder}events.txt", "Events of these objects, a line each", "\n".join(lines) + "\n")
    )


def _subject(event: Json) -> tuple[str, str]:
    subject = event.get("involvedObject") or {}
    return str(subject.get("kind") or ""), str(subject.get("name") or "")


def _moment(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def pod_texts(
    kube: Api, material: Material, pods: Sequence[Json], lines: int, pages: Sequence[Page], folder: str = ""
) -> None:
    """Plan the logs and pages of pods. `folder` ends with a slash."""
    for pod in pods[:MOST_PODS]:
        material.planned += _logs(kube, pod, lines, f"logs/{folder}")
        if status_of(pod).get("phase") == "Running":
            material.planned += _pages(kube, pod, pages, f"pages/{folder}")
    for pod in pods[MOST_PODS:]:
        material.gaps.append(Gap(f"logs of {pod['metadata']['name']}", f"those of {MOST_PODS} pods are kept"))


def _logs(kube: Api, pod: Json, lines: int, folder: str) -> Iterator[Planned]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for one in container_statuses(pod):
        state, last = one.get("state") or {}, one.get("lastState") or {}
        container = one["name"]
        if "running" in state or "terminated" in state:
            read = partial(log_of, kube, namespace, name, container, lines, previous=False)
            yield Planned(namespace, f"{folder}{name}/{container}.log", f"log of container {container}", read)
        if "terminated" in last:
            read = partial(log_of, kube, namespace, name, container, lines, previous=True)
            yield Planned(
                namespace,
                f"{folder}{name}/{container}.previous.log",
                f"log of container {container} before its restart",
                read,
            )


async def log_of(kube: Api, namespace: str, pod: str, container: str, lines: int, *, previous: bool) -> str:
    """The last lines, fewer where these are long: a bound in bytes takes the first ones, and the last matter most."""
    while True:
        found = await kube.log_tail(namespace, pod, container, previous=previous, lines=lines, max_bytes=MOST_LOG_BYTES)
        if lines <= FEWEST_LINES or len(found.encode()) < MOST_LOG_BYTES:
            return found
        lines = max(FEWEST_LINES, lines // 4)


def _pages(kube: Api, pod: Json, pages: Sequence[Page], folder: str) -> Iterator[Planned]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for page in pages:
        read: Read = partial(kube.proxied, POD, namespace, name, page.port, page.path, max_bytes=MOST_PAGE_BYTES)
        yield Planned(namespace, f"{folder}{name}{page.file}", page.what, read)


async def read_all(material: Material, most: int = MOST_BYTES, steps: Steps | None = None) -> list[Entry]:
    """The planned texts that could be read, each a step; of the others a gap each. None is begun after `most` bytes."""
    steps = steps or Steps("")
    steps.of += len(material.planned)
    limit = asyncio.Semaphore(AT_A_TIME)
    left = most

    async def one(planned: Planned) -> Entry | Gap:
        nonlocal left
        async with limit:
            if left <= 0:
                return Gap(planned.path, "not read: the bundle has no room for more")
            try:
                text = await planned.read()
                left -= len(text.encode())
                return Entry(planned.path, planned.what, text)
            except KubeError as error:
                return Gap(planned.path, why(error, planned.namespace))

    found = await asyncio.gather(*(steps.counted(one(each)) for each in material.planned))
    material.gaps += (each for each in found if isinstance(each, Gap))
    return [each for each in found if isinstance(each, Entry)]


# What belongs into a bundle.

_REPLICA_SET = resources.Resource("apps", "v1", "replicasets", "ReplicaSet")
_AUTOSCALER = resources.Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
_CHILDREN = (
    resources.DEPLOYMENT,
    _REPLICA_SET,
    resources.POD,
    resources.CONTROLLER_REVISION,
    resources.SERVICE,
    resources.ENDPOINT_SLICE,
    resources.PVC,
    resources.JOB,
    BY_KIND["PodDisruptionBudget"],
    BY_KIND["ScaledObject"],
    _AUTOSCALER,
)
_OF_GROUPS = (LEADER_WORKER_SET, NETWORK_POLICY)
"""Where a replica is spread over several nodes."""
_RESOURCE_CLAIM = resources.Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
_SERVICE_PAGES = (
    Page(HTTP_PORT, METRICS_PATH, ".metrics.txt", "vLLM's metrics"),
    Page(STATE_PORT, METRICS_PATH, ".supervisor-metrics.txt", "the supervisor's metrics"),
    Page(STATE_PORT, STATE_PATH, ".state.json", "the supervisor's state"),
)
_OPERATOR_PAGES = (Page(9090, METRICS_PATH, ".metrics.txt", "metrics of the operator or the activator"),)
_OPERATOR_LINES = 50_000
"""Lines of the operator's log in which those about a service are looked for."""
_NODE_LABELS = (
    "nvidia.com/",
    "amd.com/",
    "kubernetes.io/arch",
    "topology.kubernetes.io/",
    "node.kubernetes.io/instance-type",
)


async def of_service(kube: Api, material: Material, namespace: str, name: str, lines: int, facts: Facts) -> None:
    """CliError where there is no such LLMService."""
    found = {**await service(kube, namespace, name), "apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService"}
    add_object(material, found)
    children: list[Json] = [found]
    # Of the spec, or of replicas that have not moved to one node yet.
    is_wide = nodes_of(found) > 1 or status_of(found).get("groups")
    for resource in (*_CHILDREN, *_OF_GROUPS) if is_wide else _CHILDREN:
        children += await listed(kube, material, resource, namespace, selector_text(name))
    inspecting = f"{INSPECTS_LABEL}={name}"
    children += await listed(kube, material, resources.POD, namespace, inspecting, "objects/inspection")
    pods = [child for child in children if child["kind"] == "Pod"]
    children += await _claims(kube, material, found, pods)
    await events(kube, material, namespace, children)
    pod_texts(kube, material, pods, lines, _SERVICE_PAGES)
    for pod in facts.operator_pods:
        if _has_run(pod):
            material.planned.append(_lines_about(kube, pod, namespace, name))
    if "operator_pods" in facts.unread:
        material.gaps.append(Gap("the operator's log", facts.unread["operator_pods"].why))
    _common(material, _of_one(facts, namespace, name), {(pod.get("spec") or {}).get("nodeName") for pod in pods})


async def _claims(kube: Api, material: Material, found: Json, pods: Sequence[Json]) -> list[Json]:
    """Claims of devices and their templates: the operator's, and those whose labels are a user's or none."""
    accelerator = (found.get("spec") or {}).get("accelerator") or {}
    asked = [*(accelerator.get("resourceClaims") or ())]
    statuses: list[Json] = []
    for pod in pods:
        asked += (pod.get("spec") or {}).get("resourceClaims") or ()
        statuses += (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    if not (asked or accelerator.get("claim")):
        return []
    names = {each.get("resourceClaimTemplateName") for each in asked}
    names |= {each.get("resourceClaimName") for each in (*asked, *statuses)}

    def belongs(one: Json) -> bool:
        return one["metadata"]["name"] in names or labels_of(one).get(SERVICE_LABEL) == found["metadata"]["name"]

    namespace: str = found["metadata"]["namespace"]
    claims: list[Json] = []
    for resource in (RESOURCE_CLAIM_TEMPLATE, _RESOURCE_CLAIM):
        claims += await listed(kube, material, resource, namespace, belongs=belongs)
    return claims


def _of_one(facts: Facts, namespace: str, name: str) -> Facts:
    """Without other services and their pods, which findings name."""
    services = (one for one in facts.services if name_of(one) == f"{namespace}/{name}")
    pods = (one for one in facts.pods if labels_of(one).get(SERVICE_LABEL) == name)
    return replace(facts, services=tuple(services), pods=tuple(pods))


async def of_operator(kube: Api, material: Material, lines: int, facts: Facts) -> None:
    """Of every namespace with an operator in it."""
    places = {each["metadata"]["namespace"] for each in (*facts.operators, *facts.activators)} or {NAMESPACE}
    names = {labels_of(each)[NAME_LABEL] for each in facts.operators if labels_of(each).get(NAME_LABEL)} or {OPERATOR}
    for place in sorted(places):
        folder = f"objects/{place}"
        about: list[Json] = []
        for selector in (selector_of(names), ACTIVATORS, PAGES):
            for resource in (resources.DEPLOYMENT, _REPLICA_SET, resources.POD, resources.CONFIG_MAP):
                about += await listed(kube, material, resource, place, selector, folder)
        await events(kube, material, place, about, f"{place}/")
        pods = [one for one in about if one["kind"] == "Pod"]
        web = [pod for pod in pods if labels_of(pod).get(NAME_LABEL) == PAGES.partition("=")[2]]
        pod_texts(kube, material, [pod for pod in pods if pod not in web], lines, _OPERATOR_PAGES, f"{place}/")
        pod_texts(kube, material, web, lines, (), f"{place}/")
    for kind, objects in (("Lease", facts.leases), ("CustomResourceDefinition", map(_without_schema, facts.crd))):
        for one in objects:
            place = one["metadata"].get("namespace")
            add_object(material, {**one, "kind": kind}, f"objects/{place}" if place else "objects")
    for unread, what in (("leases", "the Lease"), ("crd", f"the CRD {CRD_NAME}")):
        if unread in facts.unread:
            material.gaps.append(Gap(what, facts.unread[unread].why))
    _common(material, facts, set())


def _without_schema(crd: Json) -> Json:
    """How it differs from this program's is a finding of doctor."""
    versions = [{name: version[name] for name in version if name != "schema"} for version in crd["spec"]["versions"]]
    return {**crd, "spec": {**crd["spec"], "versions": versions}}


def _has_run(pod: Json) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in (one.get("state") or {}) for one in statuses)


def _lines_about(kube: Api, pod: Json, namespace: str, name: str) -> Planned:
    where, operator = pod["metadata"]["namespace"], pod["metadata"]["name"]

    async def read() -> str:
        found = await log_of(kube, where, operator, "operator", _OPERATOR_LINES, previous=False)
        return "".join(f"{line}\n" for line in found.splitlines() if is_about(line, namespace, name))

    return Planned(
        where, f"logs/{where}/{operator}/about-{name}.log", "the operator's log lines about the service", read
    )


def is_about(line: str, namespace: str, name: str) -> bool:
    """Whether a line of the operator's log, in either of its formats, is about one service."""
    start = line.find("{")
    if start >= 0:
        try:
            record = parse(line[start:])
        except Refused:
            record = None
        if isinstance(record, dict) and "namespace" in record:
            return (record.get("namespace"), record.get("name")) == (namespace, name)
    return f"{namespace}/{name}" in line


def _common(material: Material, facts: Facts, nodes: set[Any]) -> None:
    """Findings, versions, and the nodes that matter: those of the pods, and those with accelerators."""
    found = tuple(results(CHECKS, facts, is_installed=facts.is_installed))
    findings = document(found, facts, is_installed=facts.is_installed)
    material.entries.append(Entry("doctor.yaml", "findings of llmservice doctor", findings))
    versions = {
        "program": version(),
        "kubernetes": facts.kubernetes,
        "operators": {name_of(each): list(images_of(each)) for each in facts.operators},
        "activators": {name_of(each): list(images_of(each)) for each in facts.activators},
    }
    material.entries.append(Entry("versions.yaml", "versions of this program, the operator and Kubernetes", versions))
    if "nodes" in facts.unread:
        material.gaps.append(Gap("nodes", facts.unread["nodes"].why))
        return
    kept = [_node(each) for each in facts.nodes if each["metadata"]["name"] in nodes or _has_accelerator(each)]
    material.entries.append(Entry("nodes.yaml", "nodes of the pods, and nodes with GPUs", kept[:200]))


def _has_accelerator(node: Json) -> bool:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return any(resource.startswith(("nvidia.com/", "amd.com/")) for resource in allocatable)


def _node(node: Json) -> Json:
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    return {
        "name": node["metadata"]["name"],
        "labels": {label: value for label, value in labels.items() if label.startswith(_NODE_LABELS)},
        "taints": (node.get("spec") or {}).get("taints") or [],
        "capacity": status.get("capacity") or {},
        "allocatable": status.get("allocatable") or {},
        "conditions": status.get("conditions") or [],
        "nodeInfo": status.get("nodeInfo") or {},
    }
