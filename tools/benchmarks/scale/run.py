"""One run: services, an operator that finds them or sees them come, a quiet minute, edits, a restart."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale.audit import AuditTail, Request, counted
from benchmarks.scale.figures import Figures, percentiles
from benchmarks.scale.process import Machine, Operator, control_plane, machine
from benchmarks.scale.services import Writer, name_of, namespace_of
from benchmarks.scale.watch import CHILDREN, Observer
from localcluster.paths import ClusterPaths

QUIET_SECONDS, QUIET_WITHIN = 10.0, 300.0
"""Without a write by the operator: what Ready still has to follow is done."""
IDLE_SECONDS = 60.0
EDITS, EDIT_WITHIN = 100, 60.0
FIRST_EDIT, LATER_EDIT = 64, 32
"""Values of maxNumSeqs that no service begins with."""
PER_SERVICE_WITHIN, AT_LEAST_WITHIN = 1.5, 300.0


@dataclass
class Plan:
    """What is to be run."""

    services: int
    rate: float | None = None
    faults: bool = False
    inspected: bool = False
    idle_seconds: float = IDLE_SECONDS
    edits: int = EDITS
    profile: Path | None = None
    """Where to write what the operator does until all are Ready."""

    @property
    def within(self) -> float:
        """Seconds after which a run is given up."""
        return max(AT_LEAST_WITHIN, PER_SERVICE_WITHIN * self.services)


@dataclass
class Scene:
    """What a run has in hand."""

    paths: ClusterPaths
    operator: Operator
    observer: Observer
    writer: Writer
    audit: AuditTail
    log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)


async def run(plan: Plan, scene: Scene) -> Figures:
    """All of it, in this order; the services stay."""
    found = Figures(plan.services, plan.faults, plan.inspected, plan.rate, machine=machine())
    found.start_cpu_seconds = await cost_of_a_start(scene)
    await scene.observer.start()
    await to_ready(plan, scene, found)
    await quiet_minute(plan, scene, found)
    await edits(plan, scene, found)
    await restart(plan, scene, found)
    return found


async def cost_of_a_start(scene: Scene) -> float:
    """CPU seconds of an operator that finds nothing."""
    await scene.operator.start()
    await scene.operator.ready()
    await asyncio.sleep(3)  # what an idle operator does at the start is over by then
    used = await scene.operator.stop()
    scene.log(f"a start alone: {used.cpu_seconds:.2f} s of CPU, {used.peak_mib:.0f} MiB")
    return used.cpu_seconds


async def to_ready(plan: Plan, scene: Scene, found: Figures) -> None:
    """From the operator's start, or the first arrival, until all say Ready."""
    numbers = range(plan.services)
    arrivals: dict[tuple[str, str], float] = {}
    if plan.rate is None:
        scene.log(f"creating {plan.services} services")
        await scene.writer.create(numbers)
    scene.audit.new()
    others, whole = control_plane(scene.paths), Machine.now()
    await scene.operator.start()
    began = scene.operator.started_at
    used = 0.0
    if plan.rate is not None:
        await scene.operator.ready()
        await asyncio.sleep(3)
        scene.audit.new()
        began, used, others = time.monotonic(), scene.operator.use().cpu_seconds, control_plane(scene.paths)
        whole = Machine.now()
    async with scene.operator.profiled(plan.profile):
        if plan.rate is not None:
            await arrive(numbers, plan.rate, scene, arrivals)
        await progress(plan, scene)
    use, observer, spent = scene.operator.use(), scene.observer, Machine.now().since(whole)
    found.floor_seconds, found.stolen_percent = round(spent.floor_seconds, 1), round(spent.stolen_percent, 1)
    start_cpu = used or found.start_cpu_seconds
    found.first_child_seconds = round(min(min(observer.first[kind].values()) for kind in CHILDREN) - began, 2)
    found.children_seconds = round(max(max(observer.first[kind].values()) for kind in CHILDREN) - began, 2)
    found.pods_seconds = round(max(observer.first["pod"].values()) - began, 2)
    ready = observer.first["ready"]
    found.ready_seconds = round(max(ready.values()) - began, 2)
    found.service_seconds = percentiles([at - arrivals.get(where, began) for where, at in ready.items()])
    found.cpu_ms_per_service = round((use.cpu_seconds - start_cpu) * 1000 / plan.services, 2)
    found.control_plane_cpu_seconds = {
        name: round(seconds - others.get(name, 0.0), 1) for name, seconds in control_plane(scene.paths).items()
    }
    requests = await until_quiet(scene)
    found.peak_mib = round(scene.operator.use().peak_mib, 1)
    found.looks_per_service = round(await scene.operator.looks() / plan.services, 2)
    found.events = await scene.writer.events()
    count_requests(requests, plan.services, found)


async def arrive(numbers: Sequence[int], rate: float, scene: Scene, arrivals: dict[tuple[str, str], float]) -> None:
    """At a constant rate, however slow the answers are."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in numbers:
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            arrivals[namespace_of(number), name_of(number)] = time.monotonic()
            group.create_task(scene.writer.create_one(number))


async def progress(plan: Plan, scene: Scene) -> None:
    """Wait until all are Ready, and log how many have what."""
    observer, logged_at = scene.observer, time.monotonic()

    def is_done() -> bool:
        nonlocal logged_at
        if time.monotonic() - logged_at > 10:
            logged_at = time.monotonic()
            have = ", ".join(f"{kind} {observer.have(kind)}" for kind in observer.first)
            scene.log(f"{logged_at - scene.operator.started_at:6.0f} s of {plan.services}: {have}")
        return all(observer.have(kind) >= plan.services for kind in observer.first)

    try:
        await observer.until(is_done, plan.within)
    except TimeoutError:
        have = {kind: observer.have(kind) for kind in observer.first}
        raise RuntimeError(f"not Ready within {plan.within:g} s: {have}; {scene.operator.last_words()}") from None


async def until_quiet(scene: Scene) -> list[Request]:
    """What was asked until no write came for a while."""
    requests, wrote, began = scene.audit.new(), time.monotonic(), time.monotonic()
    while time.monotonic() - wrote < QUIET_SECONDS:
        if time.monotonic() - began > QUIET_WITHIN:
            raise RuntimeError(f"the operator still writes after {QUIET_WITHIN:g} s")
        await asyncio.sleep(1)
        new = scene.audit.new()
        requests += new
        if any(request.is_write for request in new):
            wrote = time.monotonic()
    return requests


def count_requests(requests: Sequence[Request], services: int, found: Figures) -> None:
    """By verb and resource, and what counts."""
    counts = counted([request for request in requests if request.resource != "leases"])
    found.requests_per_service = {what: round(count / services, 3) for what, count in sorted(counts.items())}
    writes = [request for request in requests if request.is_write]
    events = [request for request in writes if request.resource == "events"]
    found.writes_per_service = round((len(writes) - len(events)) / services, 3)
    found.events_per_service = round(len(events) / services, 3)
    found.requests_failed = sum(request.code >= 400 for request in requests)


async def quiet_minute(plan: Plan, scene: Scene, found: Figures) -> None:
    """Nothing happens, and nothing should be written."""
    scene.log(f"a steady minute ({plan.idle_seconds:g} s)")
    before = scene.operator.use().cpu_seconds
    scene.audit.new()
    await asyncio.sleep(plan.idle_seconds)
    found.idle_writes = sum(request.is_write for request in scene.audit.new())
    found.idle_cpu_seconds = round(scene.operator.use().cpu_seconds - before, 2)


async def edits(plan: Plan, scene: Scene, found: Figures) -> None:
    """One after the other, each of another service: from the answer to the edit until the child has it."""
    count = min(plan.edits, plan.services - 1)
    scene.log(f"{count} edits")
    step = max(1, (plan.services - 1) // count)
    took = [await edit(1 + number * step, FIRST_EDIT, scene) for number in range(count)]
    found.edits_ms = percentiles([seconds * 1000 for seconds in took], digits=1)


async def edit(number: int, max_num_seqs: int, scene: Scene) -> float:
    """Seconds until the Deployment has it. The next one waits until its rollout, work of others, is over."""
    where = namespace_of(number), name_of(number)
    generation = await scene.writer.edit(number, max_num_seqs)
    edited_at = time.monotonic()
    observer = scene.observer
    await observer.until(lambda: observer.args[where][1] == max_num_seqs, EDIT_WITHIN)
    await observer.until(lambda: observer.ready[where] >= generation, EDIT_WITHIN)
    return max(0.0, observer.args[where][0] - edited_at)


async def restart(plan: Plan, scene: Scene, found: Figures) -> None:
    """The operator ends, one service is edited, and the operator comes again."""
    await until_quiet(scene)
    scene.log("a restart")
    await scene.operator.stop()
    scene.audit.new()
    await scene.writer.edit(0, LATER_EDIT)
    await scene.operator.start()
    began, where = scene.operator.started_at, (namespace_of(0), name_of(0))
    await scene.observer.until(lambda: scene.observer.args[where][1] == LATER_EDIT, plan.within)
    found.restart_seconds = round(scene.observer.args[where][0] - began, 2)
    writes = [request for request in await until_quiet(scene) if request.is_write]
    found.restart_writes = sum(name_of(0) != owner(request.name) for request in writes)
    found.restart_mib = round(scene.operator.use().peak_mib, 1)


def owner(child: str) -> str:
    """Of a child or an Event, by its name: service-7, service-7-0123abcd, service-7.18f0."""
    return "-".join(child.partition(".")[0].split("-")[:2])
