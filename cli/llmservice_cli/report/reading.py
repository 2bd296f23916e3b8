"""Reads for bundles: lists, logs and pages, each bounded; what cannot be read becomes a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kubeloop.errors import KubeError, NotFound
from kubeloop.resources import EVENT, POD, Resource
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Api, Json, container_statuses, status_of
from llmservice_cli.cluster import why
from llmservice_cli.progress import Steps

from .bundle import MOST_BYTES, Entry, Gap, Material, Planned, Read

MOST_OBJECTS = 500
"""Of one kind."""
MOST_EVENTS = 5_000
"""Of the namespace, of which those about the bundle's objects are kept."""
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
    kube: Api, material: Material, resource: Resource, namespace: str, selector: str = "", folder: str = "objects"
) -> tuple[Json, ...]:
    """The objects, each as an entry; none where the kind does not exist or may not be listed, which is a gap."""
    found: list[Json] = []
    try:
        async for page in kube.list_pages(resource, namespace, label_selector=selector):
            found += page.get("items") or ()
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


def add_object(material: Material, one: Json, folder: str = "objects") -> None:
    kind, name = one["kind"], one["metadata"]["name"]
    material.entries.append(Entry(f"{folder}/{kind.lower()}-{name}.yaml", f"{kind} {name}", one))


async def events(kube: Api, material: Material, namespace: str, about: Iterable[Json], folder: str = "") -> None:
    """Those of the namespace that are about these objects, the oldest first. `folder` ends with a slash."""
    known = {(one["kind"], one["metadata"]["name"]) for one in about}
    found: list[Json] = []
    seen = 0
    try:
        async for page in kube.list_pages(EVENT, namespace):
            items = page.get("items") or ()
            seen += len(items)
            found += (one for one in items if _subject(one) in known)
            if seen >= MOST_EVENTS:
                material.gaps.append(Gap("further Events", f"the first {MOST_EVENTS} of the namespace were looked at"))
                break
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
