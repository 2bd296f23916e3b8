"""A whole scaler against the simulated API server, with pods on loopback and KEDA's side of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from kubeloop import informer
from kubeloop.resources import ENDPOINT_SLICE, POD, Key
from llmservice_activator import server
from llmservice_activator.__main__ import Activator, Network
from llmservice_activator.options import Options
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.readers.pod_port import Requests, Unreadable

from tests.support.certificates import Authority
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit import api_server
from tests.unit.api_server import ApiServer, over_http

Json = dict[str, Any]


def service(
    name: str = "chat",
    *,
    version: int = 10,
    replicas: int = 1,
    concurrency: Any = 16,
    autoscaling: Json | None = None,
    **metadata: Any,
) -> Json:
    """An autoscaled LLMService as the API server stores it; from 1 to 8 replicas by default."""
    scaling = {"replicas": replicas, "autoscaling": {"maxReplicas": 8} if autoscaling is None else autoscaling}
    spec = {"model": {"uri": "hf://a/b"}, "scaling": scaling}
    status = {"replicas": replicas, "effective": {"scaling": {"concurrencyPerReplica": concurrency}}}
    return {**api_server.llmservice(name, version, spec=spec, **metadata), "status": status}


def pod(name: str, *, address: str = "10.0.0.1", ready: bool = True, version: int = 5, **changes: Any) -> Json:
    """A pod of `chat` that runs; `changes` replace parts of its status."""
    server = {"name": "server", "state": {"running": {}}, "started": ready, "restartCount": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"llmservice.dev/service": "chat", "pod-template-hash": "1"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-1", "uid": "uid-of-it", "controller": True}],
        },
        "spec": {"nodeName": "node"},
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [server],
            **changes,
        },
    }


def reference(name: str = "chat", namespace: str = "ns", **metadata: str) -> Any:
    """A ScaledObjectRef."""
    return server.MESSAGES["ScaledObjectRef"](name=name, namespace=namespace, scalerMetadata=metadata)


def request(method: str, name: str = "chat", namespace: str = "ns", metric: str = "replicas") -> bytes:
    """What KEDA sends."""
    found = reference(name, namespace)
    if method == "GetMetrics":
        found = server.MESSAGES["GetMetricsRequest"](scaledObjectRef=found, metricName=metric)
    raw: bytes = found.SerializeToString()
    return raw


@dataclass
class Keda:
    """A client with a certificate, or without."""

    channel: grpc.aio.Channel

    async def call(self, method: str, raw: bytes, timeout: float = 10) -> bytes:
        """The answer to a call that is no stream."""
        unary: Any = self.channel.unary_unary(f"/{server.SERVICE}/{method}")
        answer: bytes = await unary(raw, timeout=timeout)
        return answer

    async def replicas(self, name: str = "chat", namespace: str = "ns") -> float:
        """The metric."""
        raw = await self.call("GetMetrics", request("GetMetrics", name, namespace))
        (value,) = server.MESSAGES["GetMetricsResponse"].FromString(raw).metricValues
        assert value.metricName == "replicas"
        assert value.metricValue == ceil(value.metricValueFloat), "the integer is what an HPA makes of it"
        return float(value.metricValueFloat)

    def stream(self, name: str = "chat", namespace: str = "ns") -> Any:
        """StreamIsActive."""
        method = f"/{server.SERVICE}/StreamIsActive"
        stream: Any = self.channel.unary_stream(method)
        return stream(request("StreamIsActive", name, namespace))


@dataclass
class World:
    """What a test changes and sees."""

    api: ApiServer
    folder: Path
    scaler: Activator
    running: asyncio.Task[int]
    internal_port: int
    in_flight: dict[str, int | None] = field(default_factory=dict)
    """By address; None or absent: the pod does not answer."""
    reads: list[str] = field(default_factory=list)
    begun: dict[str, int | None] = field(default_factory=dict)
    """By address: the counter of requests that began; 0 by default."""
    peers: dict[str, dict[Key, int]] = field(default_factory=dict)
    """What other activators hold, by address; absent: it does not answer."""
    reached: set[tuple[Key, str, int]] = field(default_factory=set)
    """Services, with uid and port, whose ClusterIP leads here."""

    def page(self) -> bytes:
        """What /metrics answers."""
        self.scaler.refresh_metrics()
        return self.scaler._metrics.exposition()

    @contextlib.asynccontextmanager
    async def keda(self, client: Path | None = None, authority: bytes | None = None) -> AsyncIterator[Keda]:
        """A connection with the certificate in a folder; `authority` verifies the server's."""
        folder = client or self.folder / "keda"
        credentials = grpc.ssl_channel_credentials(
            authority or (folder / "ca.crt").read_bytes(),
            (folder / "tls.key").read_bytes() if (folder / "tls.key").exists() else None,
            (folder / "tls.crt").read_bytes() if (folder / "tls.crt").exists() else None,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{self.scaler.port}", credentials, options=options) as channel:
            yield Keda(channel)

    async def send(self, kind: str, obj: Json) -> None:
        """An event of a watch."""
        self.api.bring(kind, obj)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the watches bring."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - of a process with no signal for its tests
                await asyncio.sleep(0.002)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`server` and `keda` of one authority, `stranger` of another, which trusts the first."""
    folder = tmp_path_factory.mktemp("tls")
    ours, others = Authority.make(folder / "ours"), Authority.make(folder / "others")
    ours.issue(folder / "server")
    ours.issue(folder / "keda")
    others.issue(folder / "stranger", verifies=ours)
    return folder


@contextlib.asynccontextmanager
async def running(
    api: ApiServer,
    folder: Path,
    *,
    namespaces: tuple[str, ...] = (),
    wait: bool = True,
    tls: Path | None = None,
    **options: Any,
) -> AsyncIterator[World]:
    """A scaler whose watches are synced, if `wait`."""
    opts = dataclasses.replace(
        Options(port=0, health_port=0, metrics_port=0, internal_port=free_port(), grace=0),
        tls=tls or folder / "server",
        namespaces=namespaces,
        identity="one",
        **options,
    )
    async with over_http(api) as transport:
        in_flight: dict[str, int | None] = {}
        reads: list[str] = []

        async def read(address: str) -> Requests:
            reads.append(address)
            number = in_flight.get(address)
            if number is None:
                raise Unreadable("no answer")
            return Requests(number, world.begun.get(address, 0))

        async def held(address: str) -> dict[Key, int]:
            found = world.peers.get(address)
            if found is None:
                raise Unreadable("no answer")
            return found

        async def is_reached(key: Key, uid: str, port: int) -> bool:
            return (key, uid, port) in world.reached

        scaler = Activator(opts, transport, Network(read, held, is_reached))
        task = asyncio.create_task(scaler.run())
        world = World(api, folder, scaler, task, opts.internal_port, in_flight, reads)
        patch = pytest.MonkeyPatch()
        patch.setattr(informer, "FIRST_PAUSE", 0.001)
        try:
            await world.until(lambda: scaler.port != 0 or task.done())
            if wait:
                await world.until(scaler.is_ready)
            yield world
        finally:
            patch.undo()
            scaler.stop()
            for resource in (LLMSERVICE, POD, ENDPOINT_SLICE):
                api.streams[resource].put_nowait(None)
            await asyncio.wait_for(asyncio.shield(task), PATIENCE)
