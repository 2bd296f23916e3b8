"""One run: services, the operator that gives them ports, an activator that starts anew, a steady time in which KEDA
asks, and a request to each of some services at zero."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.autoscaling.figures import Figures
from benchmarks.autoscaling.keda import Keda, connected
from benchmarks.autoscaling.services import ScaleObserver, is_at_zero, key_of
from benchmarks.scale.audit import WRITES, AuditTail, Request, counted
from benchmarks.scale.figures import percentiles
from benchmarks.scale.process import Machine, Operator, machine
from benchmarks.scale.services import Writer
from tests.support.ports import free_port

QUIET_SECONDS, QUIET_WITHIN = 10.0, 300.0
"""Without a write: what follows the start of services and pods is done."""
PORTS_WITHIN, WOKEN_WITHIN, ANSWERED_WITHIN = 120.0, 60.0, 120.0
PER_SERVICE_WITHIN, AT_LEAST_WITHIN = 1.5, 300.0
LISTENS = "0A"
"""TCP_LISTEN in /proc/net/tcp."""
PORT_LEASE = "llmservice-port-"


class Activator(Operator):
    """One process of it: KEDA's scaler, which holds requests as well."""

    module = "llmservice_activator"

    def __init__(self, config: Path, tls: Path) -> None:
        self.port = free_port()
        super().__init__(config, args=(f"--port={self.port}", f"--tls={tls}", "--grace=0"))

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@dataclass
class Plan:
    """What is to be run."""

    services: int
    idle_seconds: float = 60.0
    wakes: int = 20

    @property
    def within(self) -> float:
        """Seconds after which a run is given up."""
        return max(AT_LEAST_WITHIN, PER_SERVICE_WITHIN * self.services)


@dataclass
class Scene:
    """What a run has in hand."""

    operator: Operator
    activator: Activator
    client: Path
    """Folder of KEDA's certificate."""
    observer: ScaleObserver
    writer: Writer
    operator_audit: AuditTail
    activator_audit: AuditTail
    log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)


async def run(plan: Plan, scene: Scene) -> Figures:
    """All of it, in this order; the services stay."""
    found = Figures(plan.services, sum(map(is_at_zero, range(plan.services))), machine=machine())
    await to_settled(plan, scene, found)
    await start_again(scene, found)
    async with asked_by_keda(plan, scene) as keda:
        await steady(plan, scene, keda, found)
        await wakes(plan, scene, found)
    return found


async def to_settled(plan: Plan, scene: Scene, found: Figures) -> None:
    """Until each service is Ready and has a port, and nobody writes any more."""
    await scene.observer.start()
    scene.log(f"creating {plan.services} services")
    await scene.writer.create(range(plan.services))
    await scene.activator.start()
    await scene.activator.ready()
    await scene.operator.start()
    observer, logged_at = scene.observer, 0.0

    def is_done() -> bool:
        nonlocal logged_at
        ready, ports = observer.have("ready"), len(observer.ports)
        if time.monotonic() - logged_at > 10:
            logged_at = time.monotonic()
            scene.log(
                f"{logged_at - scene.operator.started_at:6.0f} s of {plan.services}: ready {ready}, ports {ports}"
            )
        return min(ready, ports) >= plan.services

    try:
        await observer.until(is_done, plan.within)
    except TimeoutError:
        have = f"Ready {observer.have('ready')}, with a port {len(observer.ports)}"
        raise RuntimeError(f"not within {plan.within:g} s: {have}; {scene.operator.last_words()}") from None
    found.settled_seconds = round(time.monotonic() - scene.operator.started_at, 2)
    await until_quiet(scene)


async def until_quiet(scene: Scene) -> None:
    began = wrote = time.monotonic()
    while time.monotonic() - wrote < QUIET_SECONDS:
        if time.monotonic() - began > QUIET_WITHIN:
            raise RuntimeError(f"there are still writes after {QUIET_WITHIN:g} s")
        await asyncio.sleep(1)
        if written(scene.operator_audit.new()) or written(scene.activator_audit.new()):
            wrote = time.monotonic()


def written(requests: Collection[Request]) -> dict[str, int]:
    """Those that write, by verb and resource. The operator's own Lease apart: a leader renews it for ever."""
    return dict(counted([each for each in requests if each.verb in WRITES and not _renews(each)]))


def _renews(request: Request) -> bool:
    is_of_a_port = request.name.startswith(PORT_LEASE)
    return request.resource == "leases" and request.verb != "create" and not is_of_a_port


async def start_again(scene: Scene, found: Figures) -> None:
    """A new process finds all services with their ports."""
    await scene.activator.stop()
    wanted = set(scene.observer.ports.values())
    await scene.activator.start()
    async with asyncio.timeout(PORTS_WITHIN):
        while not wanted <= listened():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    found.ports_seconds = round(time.monotonic() - scene.activator.started_at, 2)
    found.start_cpu_seconds = round(scene.activator.use().cpu_seconds, 2)
    await scene.activator.ready()


def listened(tables: Collection[Path] = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))) -> set[int]:
    """Ports of this machine's network namespace on which somebody listens."""
    rows = (row.split() for table in tables for row in table.read_text().splitlines()[1:])
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS}


@contextlib.asynccontextmanager
async def asked_by_keda(plan: Plan, scene: Scene) -> AsyncIterator[Keda]:
    keys = [key_of(number) for number in range(plan.services)]
    in_use = {key_of(number) for number in range(plan.services) if not is_at_zero(number)}
    async with connected(scene.activator.port, scene.client, in_use.__contains__) as keda:
        keda.open_streams(keys)
        yield keda


async def steady(plan: Plan, scene: Scene, keda: Keda, found: Figures) -> None:
    """KEDA asks and nothing else happens."""
    keys = [key_of(number) for number in range(plan.services)]
    await keda.observe_all(keys, 15.0)  # the first look at each service is another one
    await until_quiet(scene)
    scene.log(f"a steady time of {plan.idle_seconds:g} s")
    keda.calls = keda.failed = keda.wrong = 0
    keda.metric_seconds.clear()
    activator, operator, whole = scene.activator.use(), scene.operator.use(), Machine.now()
    await keda.observe_all(keys, plan.idle_seconds)
    found.stolen_percent = round(Machine.now().since(whole).stolen_percent, 1)
    found.idle_seconds = plan.idle_seconds
    found.idle_cpu_seconds = round(scene.activator.use().cpu_seconds - activator.cpu_seconds, 2)
    found.operator_idle_cpu_seconds = round(scene.operator.use().cpu_seconds - operator.cpu_seconds, 2)
    found.peak_mib = round(scene.activator.use().peak_mib, 1)
    found.operator_peak_mib = round(scene.operator.use().peak_mib, 1)
    found.open_files = scene.activator.open_files()
    found.operator_idle_writes = written(scene.operator_audit.new())
    requests = scene.activator_audit.new()
    found.idle_requests, found.idle_writes = len(requests), written(requests)
    found.calls, found.calls_failed = keda.calls, keda.failed + keda.ended_streams()
    found.calls_wrong = keda.wrong + len(keda.pushed)
    found.call_ms = percentiles([seconds * 1000 for seconds in keda.metric_seconds], digits=1)


async def wakes(plan: Plan, scene: Scene, found: Figures) -> None:
    """One request to each of some services at zero, all at the same time."""
    at_zero = [number for number in range(plan.services) if is_at_zero(number)]
    step = max(1, len(at_zero) // max(1, plan.wakes))
    chosen = [key_of(number) for number in at_zero[::step][: plan.wakes]]
    scene.log(f"a request to each of {len(chosen)} services at zero")
    scaled, observer = scene.observer.scaled, scene.observer
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWERED_WITHIN)) as session:

        async def ask(key: tuple[str, str]) -> float | None:
            body = {"model": key[1], "prompt": "Hello"}
            began = time.monotonic()
            try:
                url = f"http://127.0.0.1:{observer.ports[key]}/v1/completions"
                async with session.post(url, json=body) as answer:
                    await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                scene.log(f"{key}: {error!r}")
                return None
            if answer.status != 200:
                scene.log(f"{key}: {answer.status} {(await answer.text())[:200]}")
                return None
            return time.monotonic() - began

        began = time.monotonic()
        asking = [asyncio.create_task(ask(key)) for key in chosen]
        with contextlib.suppress(TimeoutError):
            await observer.until(lambda: all(key in scaled for key in chosen), WOKEN_WITHIN)
        answered = await asyncio.gather(*asking)
    found.woken = sum(key in scaled for key in chosen)
    found.unwoken = len(chosen) - found.woken
    found.wake_seconds = percentiles([scaled[key] - began for key in chosen if key in scaled])
    found.answered_seconds = percentiles([seconds for seconds in answered if seconds is not None])
    found.unanswered = sum(seconds is None for seconds in answered)
