"""The endpoint picker of the inference extension in the cluster, and an Envoy of this machine that asks it.

Envoy has the place of a Gateway: it sends each request to the replica that the picker names in a header.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from localcluster import builds, images, install
from localcluster import gateway as gateway_api
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE
from tests.support.ports import free_port

_TYPE = "type.googleapis.com/envoy."
_HEADER = "x-gateway-destination-endpoint"
"""The address that a picker has chosen (endpoint picker protocol of the inference extension)."""


@contextmanager
def every_way_installed(cluster: Cluster) -> Iterator[None]:
    """The operator with Gateways and routers; afterwards as it was."""
    target = install.local_target(cluster.paths, os.environ)
    gateway_api.install(cluster.paths, os.environ, Progress())
    images.build_all(cluster.paths, Progress(), only=(images.ROUTER.name,))
    install.install(target, Progress(), gateway=True, routing=True)
    try:
        yield
    finally:
        install.install(target, Progress())
        gateway_api.remove(cluster.paths, os.environ, Progress())


def install_picker(cluster: Cluster, namespace: str, service: JSON, folder: Path) -> None:
    """For a service with a pool, as its users would."""
    builds.build(builds.Store(cache_root(os.environ, Path.home())), Group.ENDPOINT_PICKER, os.environ, Progress())
    images.build_all(cluster.paths, Progress(), only=(images.ENDPOINT_PICKER.name,))
    manifest = folder / "service.json"
    manifest.write_text(json.dumps(service))
    rendering = ("render", "-f", str(manifest), "-n", namespace, "--for", "epp", "-o", "json")
    image = ("--image", images.ENDPOINT_PICKER.reference)
    rendered = cluster.run(sys.executable, "-m", "llmservice_cli", *rendering, *image)
    cluster.kubectl("apply", "-f", "-", stdin=rendered)
    deployment = f"deployment/{service['metadata']['name']}-epp"
    cluster.kubectl("rollout", "status", deployment, "-n", namespace, KUBECTL_TIMEOUT, timeout=PATIENCE)


@dataclass
class Gateway:
    """An Envoy."""

    port: int
    picker: tuple[str, int]
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        envoy = str(Path(sys.prefix, "bin", "envoy"))
        flags = ("--disable-hot-restart", "--log-level", "warning", "--concurrency", "1")
        config = json.dumps(_bootstrap(self.port, self.picker))
        with (self.folder / "envoy.log").open("ab") as log:
            self.process = subprocess.Popen(
                (envoy, *flags, "--config-yaml", config), stdout=log, stderr=log, start_new_session=True
            )
        eventually("Envoy serves", self._listens, PATIENCE)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "envoy.log").read_text()[-4000:]
        with suppress(httpx.TransportError):
            httpx.get(self.url, trust_env=False)
            return True
        return False

    def kill(self) -> None:
        """As a fault in it would."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)


@contextmanager
def gateway(cluster: Cluster, namespace: str, picker: str, folder: Path) -> Iterator[Gateway]:
    """One that asks the picker of this Service, until the end of the block."""
    spec = cluster.must_get("services", namespace, picker)["spec"]
    made = Gateway(free_port(), (spec["clusterIP"], spec["ports"][0]["port"]), folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def _bootstrap(port: int, picker: tuple[str, int]) -> JSON:
    options = "extensions.upstreams.http.v3.HttpProtocolOptions"
    http2 = {"@type": f"{_TYPE}{options}", "explicit_http_config": {"http2_protocol_options": {}}}
    # Its certificate is its own.
    tls = {"@type": f"{_TYPE}extensions.transport_sockets.tls.v3.UpstreamTlsContext"}
    endpoint = {"endpoint": {"address": _address(*picker)}}
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "clients",
                    "address": _address("127.0.0.1", port),
                    # What one message to the picker has at most; gRPC takes 4 MiB.
                    "per_connection_buffer_limit_bytes": 32 << 10,
                    "filter_chains": [{"filters": [_http_connections()]}],
                }
            ],
            "clusters": [
                {
                    "name": "chosen",
                    "type": "ORIGINAL_DST",
                    "lb_policy": "CLUSTER_PROVIDED",
                    "original_dst_lb_config": {"use_http_header": True, "http_header_name": _HEADER},
                },
                {
                    "name": "picker",
                    "type": "STATIC",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2
                    },
                    "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
                    "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint]}]},
                },
            ],
        }
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _http_connections() -> JSON:
    sent = ("request_header_mode", "response_header_mode", "request_trailer_mode", "response_trailer_mode")
    streamed = ("request_body_mode", "response_body_mode")
    picking = {
        "@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "processing_mode": dict.fromkeys(sent, "SEND") | dict.fromkeys(streamed, "FULL_DUPLEX_STREAMED"),
        # Must exceed the longest request.
        "message_timeout": "3600s",
    }
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "chosen", "timeout": "0s"}}]
    router = {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"}
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "clients",
            "stream_idle_timeout": "0s",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
            "http_filters": [
                {"name": "envoy.filters.http.ext_proc", "typed_config": picking},
                {"name": "envoy.filters.http.router", "typed_config": router},
            ],
        },
    }
