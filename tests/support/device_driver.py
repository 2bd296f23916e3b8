"""A driver of devices that are names and nothing else (dynamic resource allocation): its class, its slices, and its
plugin of the first node's kubelet, which prepares what the scheduler allocated.

Messages as in Kubernetes 1.34, k8s.io/kubelet/pkg/apis/dra/v1/api.proto and pluginregistration/v1/api.proto. All of
their fields are texts and messages but two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from llmservice_operator.readers.nodes import KEPT_SECONDS

from localcluster.network import NODE
from localcluster.place import first
from tests.support.cluster import JSON, Cluster
from tests.support.host import pause

DRIVER = "gpu.llmservice.test"
"""Also the name of its class."""
_PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_REGISTRATION = "pluginregistration.Registration"
_API = "resource.k8s.io/v1"


def gib(count: float, product: str = "Some GPU") -> JSON:
    """A device with so much memory."""
    attributes = {"productName": {"string": product}, "type": {"string": "gpu"}}
    return {"attributes": attributes, "capacity": {"memory": {"value": f"{int(count * 1024)}Mi"}}}


@contextmanager
def published(cluster: Cluster, devices: Mapping[str, Sequence[JSON]]) -> Iterator[None]:
    """The class, and a slice for each node with its devices, named gpu-0 and so on; once the operator has no older
    list of them, which it would plan with."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    device_class = {"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": DRIVER}}
    items = [device_class | {"spec": {"selectors": [selector]}}]
    for node, some in devices.items():
        named = [{"name": f"gpu-{number}", **device} for number, device in enumerate(some)]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": named}
        metadata = {"name": f"{node}-{DRIVER}"}
        items.append({"apiVersion": _API, "kind": "ResourceSlice", "metadata": metadata, "spec": spec})
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    try:
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)
        pause(KEPT_SECONDS + 1)
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


@contextmanager
def kubelet_plugin(cluster: Cluster) -> Iterator[None]:
    """The plugin, which the first node's kubelet finds by its socket. Of each claim it tells the allocated devices."""
    folder = first(cluster.paths).kubelet
    plugin, registration = folder / "plugins" / DRIVER / "dra.sock", folder / "plugins_registry" / f"{DRIVER}-reg.sock"
    info = _text(1, "DRAPlugin") + _text(2, DRIVER) + _text(3, str(plugin)) + _text(4, "v1.DRAPlugin")
    services = {
        _PLUGIN: {
            "NodePrepareResources": lambda request: _by_claim(request, lambda claim: _devices(cluster, claim)),
            "NodeUnprepareResources": lambda request: _by_claim(request, lambda claim: b""),
        },
        _REGISTRATION: {"GetInfo": lambda request: info, "NotifyRegistrationStatus": lambda request: b""},
    }
    servers = [_served(plugin, _PLUGIN, services[_PLUGIN])]
    try:
        servers.append(_served(registration, _REGISTRATION, services[_REGISTRATION]))
        yield
    finally:
        for server in reversed(servers):
            server.stop(grace=5).wait()
        for socket in (registration, plugin):
            socket.unlink(missing_ok=True)


def allocated(cluster: Cluster, namespace: str, pod: JSON) -> list[tuple[str, str]]:
    """(node, device) of what the claims of a pod got."""
    found = []
    for each in pod.get("status", {}).get("resourceClaimStatuses") or ():
        claim = cluster.must_get("resourceclaims", namespace, each["resourceClaimName"])
        found += [(result["pool"], result["device"]) for result in _results(claim)]
    return found


def _served(socket: Path, service: str, calls: Mapping[str, Callable[[bytes], bytes]]) -> grpc.Server:
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(lambda request, context, call=call: call(request))
        for name, call in calls.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server


def _by_claim(request: bytes, answer: Callable[[JSON], bytes]) -> bytes:
    """A response with an answer for each claim of a request, by its uid."""
    response = b""
    for number, raw in _fields(request):
        if number == 1:
            claim = {_CLAIM[field]: value.decode() for field, value in _fields(raw)}
            response += _field(1, _text(1, claim["uid"]) + _field(2, answer(claim)))
    return response


_CLAIM = {1: "namespace", 2: "uid", 3: "name"}


def _devices(cluster: Cluster, claim: JSON) -> bytes:
    """NodePrepareResourceResponse: the allocated devices; a container gets nothing of them."""
    found = cluster.must_get("resourceclaims", claim["namespace"], claim["name"])
    own = [each for each in _results(found) if each["driver"] == DRIVER and each["pool"] == NODE]
    return b"".join(
        _field(1, _text(1, each["request"]) + _text(2, each["pool"]) + _text(3, each["device"])) for each in own
    )


def _results(claim: Mapping[str, Any]) -> list[JSON]:
    allocation = claim.get("status", {}).get("allocation") or {}
    results: list[JSON] = allocation.get("devices", {}).get("results") or []
    return results


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, value: bytes) -> bytes:
    """A text or a message of protobuf's wire format."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low = value & 127
    return bytes([low | 128]) + _varint(value >> 7) if value > 127 else bytes([low])


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each text or message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        assert key & 7 == 2, f"field {key >> 3} is no text and no message"
        length = varint()
        yield key >> 3, message[at : at + length]
        at += length
