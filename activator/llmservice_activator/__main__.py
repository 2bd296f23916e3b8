"""Starts the scaler: arguments, logging, and the few long tasks it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

import grpc.aio
from llmservice_operator.api.service import Key
from llmservice_operator.kube import credentials as kube_credentials
from llmservice_operator.kube.client import AlwaysOpen, KubeClient
from llmservice_operator.kube.errors import ConfigError
from llmservice_operator.kube.requests_reader import RequestsReader
from llmservice_operator.kube.transport import Transport
from llmservice_operator.process import log
from llmservice_operator.process.health import HealthServer, PortTaken, Readiness
from prometheus_client import disable_created_metrics

from llmservice_activator import options, server
from llmservice_activator.answers import Answers
from llmservice_activator.certificate import MutualTls
from llmservice_activator.events import COMPONENT, Events
from llmservice_activator.load import LoadReader, Read
from llmservice_activator.metrics import Metrics
from llmservice_activator.options import Options
from llmservice_activator.server import ExternalScaler
from llmservice_activator.services import Service, Services, Watches

logger = logging.getLogger("llmservice_activator")

FINISH = 3.0
"""Seconds that calls get to end after SIGTERM: longer than a pod's answer may take."""


class Scaler:
    """One process: watches, and answers KEDA."""

    def __init__(self, opts: Options, transport: Transport, read: Read) -> None:
        self._options = opts
        self._tls = MutualTls(opts.tls)
        self._metrics = Metrics()
        self.services = Services(changed=self._changed, gone=self._gone)
        self._watches = Watches(transport, opts.namespaces, self.services)
        self._answers = Answers(self.services, LoadReader(read), observe=self._metrics.observe)
        self._events = Events(
            KubeClient(transport, AlwaysOpen()).create_event,
            self._answers.latest,
            identity=opts.identity,
            dropped=self._metrics.events_dropped.inc,
        )
        self._external = ExternalScaler(self.services, self._watches, self._answers, self._metrics.called)
        self._stop = asyncio.Event()
        self.port = 0
        """Where KEDA is answered; 0 before."""

    async def run(self) -> int:
        """Until it is stopped (0) or something ends that must not (1)."""
        self._take_signals()
        health = HealthServer(
            alive=lambda: None,
            ready=self.readiness,
            metrics=self.exposition,
            health_port=self._options.health_port,
            metrics_port=self._options.metrics_port,
        )
        await health.start()
        grpc_server = server.make(self._external)
        tasks = [
            asyncio.create_task(self._watches.run(), name="watches"),
            asyncio.create_task(self._events.run(), name="events"),
            asyncio.create_task(self._tls.keep_fresh(), name="certificate"),
        ]
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            self.port = self._listen(grpc_server)
            await grpc_server.start()
            logger.info("answering KEDA on port %d", self.port)
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in done if task is not stopped]
            for task in failed:
                logger.error("%s ended", task.get_name(), exc_info=task.exception())
            logger.info("stopping")
            self._external.stop()
            await grpc_server.stop(FINISH)
            logger.info("stopped")
            return 1 if failed else 0
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            await health.stop()

    def stop(self) -> None:
        """As SIGTERM does: calls finish, then the process ends."""
        self._stop.set()

    def is_ready(self) -> bool:
        """Whether KEDA can be answered."""
        return not self._stop.is_set() and self._watches.is_ready()

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
            with contextlib.suppress(ValueError):  # a thread of a test has none
                loop.add_signal_handler(number, self.stop)

    def _changed(self, before: Service, after: Service) -> None:
        logger.info("replicas %d -> %d", before.replicas, after.replicas, extra={"llmservice": after.key})
        self._events.changed(before, after)

    def _gone(self, key: Key) -> None:
        self._answers.forget(key)
        self._metrics.forget(key)

    def readiness(self) -> Readiness:
        """What /readyz answers."""
        is_ready = self.is_ready()
        problems = ["stopping"] if self._stop.is_set() else self._watches.problems()
        return Readiness(is_ready, tuple(f"warning: {line}" for line in problems) if is_ready else tuple(problems))

    def exposition(self) -> bytes:
        """What /metrics answers."""
        self._metrics.services.set(len(self.services))
        return self._metrics.exposition()


async def serve(opts: Options) -> int:
    """The whole life of the process."""
    found = await kube_credentials.load(kubeconfig=opts.kubeconfig, context=opts.context)
    async with Transport(found, user_agent=COMPONENT) as transport, RequestsReader() as reader:
        where = ", ".join(opts.namespaces) or "all namespaces"
        logger.info("starting as %s, watching %s at %s", opts.identity, where, found.server)
        return await Scaler(opts, transport, reader.read).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    opts = options.load(sys.argv[1:] if argv is None else argv)
    log.setup(opts.log_format, opts.log_level)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody reads
    try:
        return asyncio.run(serve(opts))
    except (ConfigError, PortTaken) as error:
        logger.error("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
