"""Entry point: arguments, logging, and the tasks of the process."""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import uvloop
from kubeloop import credentials as kube_credentials
from kubeloop import garbage, log
from kubeloop.client import AlwaysOpen, Gate, KubeClient, PodEventReader
from kubeloop.errors import ConfigError
from kubeloop.health import Access, Certificate, HealthServer, Life, PortTaken, Stage, unguarded
from kubeloop.informer import Cache, SyncState
from kubeloop.kopf_source import Resync, Watch
from kubeloop.lease import Lease
from kubeloop.queue import WorkQueue
from kubeloop.resources import Key
from kubeloop.transport import Transport
from llmservice_api.constants import LEADER_WORKER_SET, LLMSERVICE, OPERATOR, RESOURCE_CLAIM_TEMPLATE, SPLIT_ANNOTATION
from llmservice_runtime.health import watchdog
from prometheus_client import disable_created_metrics

from llmservice_operator import options
from llmservice_operator.options import Options, version
from llmservice_operator.readers.holding_ports import HoldingPorts
from llmservice_operator.readers.nodes import Nodes, QuotaReader
from llmservice_operator.readers.pod_port import ActivatorReader, RequestsReader, StateReader
from llmservice_operator.service.config_reader import ConfigReader
from llmservice_operator.service.containment import InternalErrors, InWork, Part
from llmservice_operator.service.context import Context, Updates
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.reconcile import Workers
from llmservice_operator.service.state_poller import StatePoller
from llmservice_operator.service.watch import (
    INDICES,
    PARENT,
    PROJECTIONS,
    ActivatorsWatch,
    ChildrenWatch,
    EventHandler,
    identity_of,
    key_of,
    may_hold,
    placed,
    priority_after_child,
    watched_children,
)

logger = logging.getLogger("llmservice_operator")

BURST = 0.2
"""Seconds in which changes of a service's children are combined."""
FINISH_IN_FLIGHT = 3.0
STOP_WATCHING = 1.5
LONGEST_BLOCK = 20.0
"""Seconds without a turn of the event loop after which the process ends, before the kubelet asks it to: what is in work
is recorded then. It has lost its Lease by that time."""


class Operator:
    """One process: always watches everything, and acts while it holds the Lease."""

    def __init__(
        self,
        opts: Options,
        transport: Transport,
        reader: StateReader,
        requests: RequestsReader,
        activators: ActivatorReader,
        metrics: Metrics,
    ) -> None:
        self._options = opts
        self._transport = transport
        self._metrics = metrics
        namespace = opts.lease_namespace or transport.credentials.namespace
        lease = Lease(
            transport,
            namespace=namespace,
            name=opts.lease_name,
            identity=opts.identity,
            split_annotation=SPLIT_ANNOTATION,
        )
        self._lease = lease if opts.leader_elect else None
        gate: Gate = self._lease or AlwaysOpen()
        kube, cache = KubeClient(transport, gate), Cache(PROJECTIONS, INDICES)
        count = metrics.internal_errors
        for part in Part:  # creates the series, so that the first failure is an increase
            count.labels(part)
        self._errors = InternalErrors(count=lambda part: count.labels(part).inc(), changed=self._changed)
        build = f"{version()} {opts.services.operator_image}"
        self._in_work = InWork(
            opts.state_dir, build, lambda key: identity_of(cache, key), lambda: self._ctx.queue.depth > 0
        )
        self._state_poller = StatePoller(
            reader.read, self._changed, metrics, errors=self._errors, in_work=self._in_work
        )
        self._configs = ConfigReader(
            wake=self._changed, observe=lambda result: metrics.config_reads.labels(result).inc()
        )
        # With a subset of namespaces the pods of other services are unknown.
        own = None if self._options.namespaces else lambda: placed(cache)
        service = opts.services.activator_service
        self._activators = ActivatorsWatch(transport, *service, self._activators_changed) if service else None
        self._ctx = Context(
            kube=kube,
            cache=cache,
            queue=WorkQueue(tenant=lambda key: key.namespace),
            state_poller=self._state_poller,
            nodes=Nodes(kube, own=own, contained=lambda what: self._errors.contained(Part.NODES, subject=what)),
            configs=self._configs,
            updates=Updates(limit=opts.max_concurrent_updates, errors=self._errors),
            errors=self._errors,
            in_work=self._in_work,
            pod_events=PodEventReader(kube),
            quotas=QuotaReader(kube),
            read_requests=requests.read,
            activators=self._activators.known if self._activators else lambda: None,
            ask_activator=activators.read,
            claim_port=HoldingPorts(kube, namespace).claim,
            settings=opts.services,
            metrics=metrics,
            now=lambda: datetime.datetime.now(datetime.UTC),
            identity=opts.identity,
            is_acting=self._is_acting,
        )
        self._workers = Workers(self._ctx)
        children = watched_children(opts.services)
        namespaces: tuple[str | None, ...] = opts.namespaces or (None,)
        self._sync = SyncState(
            namespaces, LLMSERVICE, children, on_warm=self._enqueue_namespace, on_hidden=self._enqueue_namespace
        )
        self._life = Life(self._sync, lambda: self._lease.problem if self._lease else None)
        handler = EventHandler(
            self._ctx.cache, self._changed, self._children_changed, self._errors, pod_deleted=self._ctx.pod_deleted
        )
        contained = functools.partial(self._errors.contained, Part.RESYNC)
        self._resyncs = {
            name: Resync(transport, LLMSERVICE, handler, name, self._sync, contained=contained) for name in namespaces
        }
        self._ctx.is_current = lambda parent: self._resync_of(parent.namespace).is_current(parent.uid)
        self._children = ChildrenWatch(transport, handler, namespaces, self._sync, children)
        unwatched = frozenset({LEADER_WORKER_SET.kind, RESOURCE_CLAIM_TEMPLATE.kind}) - {kind.kind for kind in children}
        self._ctx.hidden = lambda namespace: self._sync.hidden(namespace) | unwatched
        self._stop = asyncio.Event()
        self._leading = asyncio.Event()

    async def run(self) -> int:
        """Run until stopped (returns 0) or until a task ends unexpectedly (returns 1)."""
        loop = asyncio.get_running_loop()
        self._take_signals(loop)
        certificate = Certificate(Path(self._options.metrics_tls)) if self._options.metrics_tls else None
        if certificate is not None:
            self._metrics.certificate_expiry.labels("metrics").set_function(lambda: certificate.expires_at)
        is_open = self._options.metrics_authentication == "none"
        server = HealthServer(
            alive=self._alive,
            ready=self._life.readiness,
            metrics=self._metrics.exposition,
            refresh=self._refresh_metrics,
            health_port=self._options.health_port,
            metrics_port=self._options.metrics_port,
            guard=unguarded if is_open else Access(self._transport),
            metrics_tls=certificate.context if certificate else None,
        )
        await server.start()
        tasks: list[asyncio.Task[object]] = []
        try:
            tasks += [asyncio.create_task(self._campaign(), name="lease")]
            tasks += [asyncio.create_task(certificate.keep_fresh(), name="certificate")] if certificate else []
            acting = asyncio.create_task(self._act(), name="workers")
            tasks += [acting, asyncio.create_task(self._state_poller.run(), name="state poller")]
            tasks += [asyncio.create_task(resync.run(), name="resync") for resync in self._resyncs.values()]
            tasks += [asyncio.create_task(garbage.collect_while_idle(self._is_idle), name="garbage")]
            watch = self._activators
            tasks += [asyncio.create_task(watch.run(), name="watch of activators")] if watch else []
            tasks += [asyncio.create_task(self._children.run(), name="watches of children")]
            watches = asyncio.create_task(self._watch(loop), name="watches")
            tasks += [watches]
            stopped = asyncio.create_task(self._stop.wait(), name="stop")
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return await self._shut_down(done, stopped, acting, watches)
        finally:
            self._in_work.close()
            for task in tasks:
                task.cancel()
            await self._configs.close()
            await server.stop()

    async def _shut_down(
        self,
        done: set[asyncio.Task[object]],
        stopped: asyncio.Task[bool],
        acting: asyncio.Task[object],
        watches: asyncio.Task[object],
    ) -> int:
        """Finish running reconciles, release the Lease, then stop watching."""
        failed = [task for task in done if task is not stopped]
        for task in failed:
            logger.error("%s ended: %s", task.get_name(), _why(task))
        was_acting = self._life.is_acting
        self._life.reach(Stage.STOPPING)
        logger.info("stopping: %d services in work, %d waiting", len(self._ctx.queue.in_work), self._ctx.queue.depth)
        self._workers.stop()
        if self._lease is not None:
            self._lease.stop()
        if was_acting:
            await asyncio.wait({acting}, timeout=FINISH_IN_FLIGHT)
        if self._lease is not None:
            await self._lease.release()
        watches.cancel()
        await asyncio.wait({watches}, timeout=STOP_WATCHING)
        logger.info("stopped")
        return 1 if failed else 0

    # Tasks.

    async def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        async with asyncio.TaskGroup() as group:
            for namespace, resync in self._resyncs.items():
                watch = Watch(
                    self._transport.credentials,
                    resync,
                    namespace,
                    self._options.identity,
                    # kopf replaces the signal handlers at its start; this process keeps its own order of shutdown.
                    spawned=lambda: self._take_signals(loop),
                )
                group.create_task(watch.run(), name=f"watch of {LLMSERVICE.plural}")

    async def _campaign(self) -> None:
        await self._sync.listable.wait()
        if self._lease is None:
            self._leading.set()
            await asyncio.Event().wait()
        else:
            await self._lease.run(self)

    async def _act(self) -> None:
        await self._sync.settled.wait()
        self._life.reach(Stage.SYNCED)
        await self._leading.wait()
        self._life.reach(Stage.ACTING)
        garbage.collect()  # what was created until now lives long
        self._ctx.enqueue(key for key in self._ctx.cache.all_keys() if self._may_act(key))
        await self._workers.run()

    def _is_idle(self) -> bool:
        return not self._ctx.queue.depth and not self._ctx.queue.in_work

    # Called by the Lease (LeaderCallbacks)

    def gained(self) -> None:
        """Reconcile all services: a follower's cache is up to date."""
        self._leading.set()
        if self._life.is_acting:
            self._take_over(self._ctx.cache.all_keys())

    def lost(self) -> None:
        """Workers discard running reconciles when they end."""
        for key in {*self._ctx.cache.all_keys(), *self._ctx.memories} - {*self._ctx.queue.in_work}:
            self._ctx.forget(key)

    def is_busy(self) -> bool:
        return bool(self._ctx.queue.in_work)

    # Called by the watches

    def _enqueue_namespace(self, namespace: str | None) -> None:
        """Queue all services: a namespace became warm, or the kinds that can be listed in it changed."""
        if self._life.is_acting and self._is_acting():
            self._take_over(key for key in self._ctx.cache.all_keys() if namespace in (None, key.namespace))

    def _take_over(self, keys: Iterable[Key]) -> None:
        warm = [key for key in keys if self._sync.is_warm(key.namespace)]
        self._ctx.updates.take_over(warm)
        self._ctx.enqueue(warm)

    def _changed(self, key: Key) -> None:
        """A follower keeps its cache up to date and reconciles nothing."""
        if self._life.is_acting and self._may_act(key):
            self._ctx.enqueue((key,))

    def _children_changed(self, key: Key) -> None:
        if self._life.is_acting and self._may_act(key):
            self._ctx.queue.add_soon(key, BURST, priority_after_child(self._ctx.cache.get(PARENT, *key)))

    def _activators_changed(self) -> None:
        """Queue the services whose requests may be held."""
        if self._life.is_acting:
            found = (key_of(parent) for parent in self._ctx.cache.all_of(PARENT) if may_hold(parent))
            self._ctx.enqueue(key for key in found if self._may_act(key))

    def _may_act(self, key: Key) -> bool:
        return self._is_acting() and self._sync.is_warm(key.namespace)

    def _resync_of(self, namespace: str) -> Resync:
        return self._resyncs[namespace if namespace in self._resyncs else None]

    def _is_acting(self) -> bool:
        return self._lease is None or self._lease.is_acting

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    def _alive(self) -> str | None:
        return self._ctx.queue.stalled() if self._life.is_acting else None

    def _refresh_metrics(self) -> None:
        self._metrics.leader.set(self._lease is None or (self._lease.is_acting and self._lease.is_leader))
        self._metrics.set_life(self._life.stage, self._sync)
        self._metrics.queue_depth.set(self._ctx.queue.depth)
        self._metrics.queue_delayed.set(self._ctx.queue.delayed)
        self._metrics.tasks.set(len(asyncio.all_tasks()))


def _why(task: asyncio.Task[object]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "returned" if error is None else f"{type(error).__name__}: {error}"


async def serve(opts: Options) -> int:
    metrics = Metrics()
    found = await kube_credentials.load(kubeconfig=opts.kubeconfig, context=opts.context)
    async with (
        Transport(found, user_agent=OPERATOR, observer=metrics.observe_request) as transport,
        StateReader() as reader,
        RequestsReader() as requests,
        ActivatorReader() as activators,
    ):
        operator = Operator(opts, transport, reader, requests, activators, metrics)
        where = ", ".join(opts.namespaces) or "all namespaces"
        logger.info("starting as %s, watching %s at %s", opts.identity, where, found.server)
        is_recording = opts.state_dir is not None
        with watchdog.watching(asyncio.get_running_loop(), LONGEST_BLOCK) if is_recording else nullcontext():
            return await operator.run()


def main(argv: Sequence[str] | None = None) -> int:
    opts = options.load(sys.argv[1:] if argv is None else argv)
    garbage.begin()
    log.setup(opts.log_format, opts.log_level)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each metric, which nobody reads
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(opts))
    except (ConfigError, PortTaken) as error:
        logger.error("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
