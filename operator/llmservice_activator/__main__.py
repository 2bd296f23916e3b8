"""Entry point: arguments, logging, and the tasks of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

import grpc.aio
from kubeloop import credentials as kube_credentials
from kubeloop import log
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import ConfigError
from kubeloop.health import HealthServer, PortTaken, Readiness
from kubeloop.informer import Informer
from kubeloop.resources import ENDPOINT_SLICE, Key
from kubeloop.transport import Transport
from llmservice_operator.readers.pod_port import RequestsReader
from prometheus_client import disable_created_metrics

from llmservice_activator import options, server
from llmservice_activator.admission import Admission, ClientPods
from llmservice_activator.answers import HeldTotal, LoadReader, Read, ScalingAnswers
from llmservice_activator.api_keys import KeyReader
from llmservice_activator.events import COMPONENT, ScalingEvents
from llmservice_activator.holding.server import HoldingServer
from llmservice_activator.metrics import Metrics
from llmservice_activator.options import Options
from llmservice_activator.peers import (
    LIMIT_CACHE_SECONDS,
    PEER_TIMEOUT,
    InternalServer,
    OtherActivators,
    PeerReader,
    Reachability,
)
from llmservice_activator.peers import MAX_PEER_BYTES as MAX_PEER_BYTES
from llmservice_activator.server import ExternalScaler, MutualTls
from llmservice_activator.services import Service, Services, Watches
from llmservice_activator.targets import TargetUpdater
from llmservice_activator.wake import ReplicaStarter

logger = logging.getLogger("llmservice_activator")

CALLS_SECONDS = 3.0
"""Seconds in which calls of KEDA may end: longer than a pod may take to answer."""
QUIET_SECONDS = 10.0
"""Seconds without a new connection after which none is expected: nodes learn late that an endpoint is gone, and so does
an operator with many slices to write."""
END_SECONDS = 0.5
"""Seconds in which requests may end when the process ends."""
POLL_SECONDS = 0.1
"""Seconds between two checks whether all requests are answered."""


@dataclass(frozen=True, slots=True)
class Network:
    """Calls to pods and to other activators."""

    requests: Read
    """Reads the requests of a pod."""
    held: Callable[[str], Awaitable[dict[Key, int]]]
    """Reads what another activator holds; Unreadable."""
    is_reached: Callable[[Key, str, int], Awaitable[bool]]
    """Whether a service's ClusterIP leads to an activator."""


class Activator:
    """Watches, answers KEDA, and holds requests of services without a replica."""

    def __init__(self, opts: Options, transport: Transport, network: Network) -> None:
        self._options = opts
        self._tls = MutualTls(opts.tls)
        self._metrics = Metrics()
        self.services = Services(changed=self._changed, gone=self._gone, touched=self._touched)
        self._watches = Watches(transport, opts.namespaces, self.services)
        self._answers = ScalingAnswers(
            self.services, LoadReader(network.requests), observe=self._metrics.observe, held=self._held
        )
        self._wake = ReplicaStarter(transport, self.services, lambda result: self._metrics.wakes.labels(result).inc())
        admission = Admission(self.services.find, ClientPods(transport, opts.namespaces))
        self._keys = KeyReader(transport, self._touched)
        self.holding = HoldingServer(
            wake=self._on_held,
            count=self._metrics,
            held_by_others=self._held_by_others,
            admits=admission.admits,
            renews=self._keys.renewed,
        )
        self.peers = OtherActivators(
            network.held,
            own_name=opts.identity,
            own_address=opts.address,
            is_watched=bool(opts.service),
            changed=self._recounted,
        )
        self.targets = TargetUpdater(self.services, self.holding, self._keys, lambda: self.peers.activators)
        self.internal = InternalServer(
            self.services,
            held=lambda: {key: (held.requests, held.bytes) for key, held in self.holding.all_held().items()},
            is_listening=self.holding.is_listening,
            leads_here=self.targets.leads_here,
            is_reached=network.is_reached,
            problem=self.targets.problem,
            asked=self._keys.request,
        )
        self._peer_slices = Informer(
            transport,
            ENDPOINT_SLICE,
            opts.namespace,
            f"kubernetes.io/service-name={opts.service}",
            self.peers,
            report=self.peers.report,
        )
        self._events = ScalingEvents(
            KubeClient(transport, AlwaysOpen()).create_event,
            self._answers.latest,
            identity=opts.identity,
            woken=self._wake.has_started,
            dropped=self._metrics.events_dropped.inc,
        )
        self._external = ExternalScaler(self.services, self._watches, self._answers, self._metrics.called)
        self._stop = asyncio.Event()
        self._is_reported = False
        self.port = 0
        """The port of the gRPC server; 0 before it listens."""

    async def run(self) -> int:
        """Run until `stop` (returns 0) or until a task ends unexpectedly (returns 1)."""
        self._take_signals()
        health = HealthServer(
            alive=lambda: None,
            ready=self.readiness,
            metrics=self._metrics.exposition,
            refresh=self.refresh_metrics,
            health_port=self._options.health_port,
            metrics_port=self._options.metrics_port,
        )
        await health.start()
        await self.holding.start()
        grpc_server = server.make(self._external)
        tasks = [asyncio.create_task(run, name=name) for name, run in self._tasks()]
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await self.internal.start(self._options.internal_port)
            self.port = self._listen(grpc_server)
            await grpc_server.start()
            logger.info("answering KEDA on port %d", self.port)
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in done if task is not stopped]
            for task in failed:
                logger.error("%s ended", task.get_name(), exc_info=task.exception())
            logger.info("stopping")
            if not failed:
                await self._drain()
            self._external.stop()
            await grpc_server.stop(CALLS_SECONDS)
            logger.info("stopped")
            return 1 if failed else 0
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            await self._end_requests()
            await self._wake.stop()
            await self.internal.stop()
            await health.stop()

    def stop(self) -> None:
        """Stop as SIGTERM does: finish calls, then end."""
        self._stop.set()

    def is_ready(self) -> bool:
        """Whether KEDA can be answered, and all ports were opened at least once."""
        is_synced = self._watches.is_ready()
        self._is_reported = self._is_reported or (is_synced and self.targets.is_settled())
        return is_synced and self._is_reported and not self._stop.is_set()

    def _tasks(self) -> list[tuple[str, Coroutine[object, object, None]]]:
        """The tasks that run until the process ends, by name."""
        parts = [
            ("watches", self._watches.run()),
            ("events", self._events.run()),
            ("certificate", self._tls.keep_fresh()),
            ("targets", self.targets.run()),
            ("API keys", self._keys.run()),
        ]
        return [*parts, ("activators", self._peer_slices.run())] if self._options.service else parts

    async def _drain(self) -> None:
        """Wait until all requests are answered and no more are expected, or the grace period ends."""
        loop = asyncio.get_running_loop()
        began, grace = loop.time(), self._options.grace
        while True:  # polled: no event says that no further request will come
            passed = loop.time() - began
            quiet = loop.time() - max(began, self.holding.last_connection())
            if quiet >= QUIET_SECONDS and not self.holding.in_progress():
                return
            if passed >= max(grace - CALLS_SECONDS, min(QUIET_SECONDS, grace)):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _end_requests(self) -> None:
        """Answer the remaining requests with 503."""
        if left := self.holding.in_progress():
            logger.warning("%d requests were not answered within the grace period", left)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.holding.stop()

    def _listen(self, grpc_server: grpc.aio.Server) -> int:
        try:
            return grpc_server.add_secure_port(f"[::]:{self._options.port}", self._tls.credentials())
        except RuntimeError as error:
            raise PortTaken(
                f"cannot listen on port {self._options.port}: {error}. Choose another with --port."
            ) from error

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError):  # in a thread of a test
                loop.add_signal_handler(number, self.stop)

    def _changed(self, before: Service, after: Service) -> None:
        logger.info("replicas %d -> %d", before.replicas, after.replicas, extra={log.KEY: after.key})
        self._events.changed(before, after)
        if after.replicas == 0 and self.holding.held(after.key).requests:
            self._on_held(after.key)  # a request that came while the last replica ended

    def _touched(self, key: Key) -> None:
        self.targets.touched(key)

    def _recounted(self) -> None:
        logger.info("there are %d activators", self.peers.activators)
        self.targets.touched_all()

    def _on_held(self, key: Key) -> None:
        """A request of the service is held."""
        self._wake(key)
        self._external.activated(key)

    async def _held_by_others(self, key: Key) -> int:
        """Requests of a service at the other activators that answer."""
        return (await self.peers.held(key, LIMIT_CACHE_SECONDS)).requests

    async def _held(self, key: Key) -> HeldTotal:
        """Requests of a service at all activators."""
        others = await self.peers.held(key)
        return HeldTotal(self.holding.held(key).requests + others.requests, others.unanswered_activators)

    def _gone(self, key: Key) -> None:
        self._answers.forget(key)
        self._wake.forget(key)
        self._metrics.forget(key)

    def readiness(self) -> Readiness:
        is_ready = self.is_ready()
        problems = ["stopping"] if self._stop.is_set() else self._watches.problems()
        if not self._is_reported:
            problems = [*problems, "ports of services are not open yet"]
        return Readiness(is_ready, tuple(f"warning: {line}" for line in problems) if is_ready else tuple(problems))

    def refresh_metrics(self) -> None:
        """Update the gauges that are not updated by events."""
        self._metrics.services.set(len(self.services))
        self._metrics.certificate_expiry.labels("scaler").set(self._tls.expires_at)
        self._metrics.expire()
        self._metrics.show_held(self.holding.all_held())
        self._metrics.show_uses(self._answers.last_uses(self.holding.last_held()))


async def serve(opts: Options) -> int:
    found = await kube_credentials.load(kubeconfig=opts.kubeconfig, context=opts.context)
    async with (
        Transport(found, user_agent=COMPONENT) as transport,
        RequestsReader() as reader,
        PeerReader(port=opts.internal_port, timeout=PEER_TIMEOUT, limit=MAX_PEER_BYTES) as peers,
        Reachability() as reachability,
    ):
        where = ", ".join(opts.namespaces) or "all namespaces"
        logger.info("starting as %s, watching %s at %s", opts.identity, where, found.server)
        network = Network(reader.read, peers.read, reachability.is_reached)
        return await Activator(opts, transport, network).run()


def allow_open_files() -> None:
    """Raise the limit of open files to its maximum: many runtimes start with 1,024, and each held service has a
    listener."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(argv: Sequence[str] | None = None) -> int:
    opts = options.load(sys.argv[1:] if argv is None else argv)
    log.setup(opts.log_format, opts.log_level)
    allow_open_files()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each metric, which nobody reads
    try:
        return asyncio.run(serve(opts))
    except (ConfigError, PortTaken) as error:
        logger.error("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
