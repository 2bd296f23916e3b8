"""How requests reach an LLMService: by its Service from a pod of the cluster, else through the API server's proxy, and
with an API key, which that proxy removes, through a port-forward to a pod. Or any server at its URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
from kubeloop.resources import POD, SERVICE, proxy_path
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import selector_text
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_runtime.contract import HTTP_PORT

from llmservice_cli.api import Api, Json
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.errors import CliError
from llmservice_cli.forward import PodPort, forwarded
from llmservice_cli.options import Scope
from llmservice_cli.services import endpoint_of, service
from llmservice_cli.wait.command import assess

from .options import Server
from .server import ALL_AT_ONCE, CONNECT_SECONDS, Target, client_of, direct, from_secret, headers_of, hiding, key_of

PROXIED, FORWARDED, INSIDE = "through the API server", "through a port-forward", "in the cluster"
SLOWER = (
    "all requests share one pod's port-forward, which is slower than the network: in the cluster, or with --url, the"
    " server alone is measured"
)
_TIMEOUT = httpx.Timeout(None, connect=CONNECT_SECONDS)


@asynccontextmanager
async def open_target(options: Server, say: Callable[[str], None] | None) -> AsyncIterator[Target]:
    """Nothing is sent to the server yet. `say`, where there is one, takes where an API key is from."""
    if options.url:
        key = key_of(options.api_key_env)
        async with client_of(options.url, headers_of(key), ALL_AT_ONCE, _TIMEOUT) as http:
            yield direct(options.url, http, key)
        return
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name or "")
        key = await service_key(connection.kube, found, options.api_key_env, say)
        async with _of_service(connection, found, key, await url_inside(found, options)) as target:
            yield target


async def service_key(kube: Api, found: Json, variable: str | None, say: Callable[[str], None] | None) -> str:
    """The API key in the environment variable, else of the service's Secret, which `say` is given; empty where the
    service has none."""
    if variable is not None or (known := await from_secret(kube, found)) is None:
        return key_of(variable)
    key, place = known
    if say is not None:
        say(f"the API key is from {place}")
    return key


@asynccontextmanager
async def _of_service(connection: Connection, found: Json, key: str, inside: str | None) -> AsyncIterator[Target]:
    name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    shown, advice = f"{namespace}/{name}", f"look at it: llmservice status {name} -n {namespace}"
    if inside is not None:
        async with client_of(inside, headers_of(key), ALL_AT_ONCE, _TIMEOUT) as http:
            yield Target(http, shown, INSIDE, advice, redactor=hiding(key))
        return
    if not key:
        path = proxy_path(SERVICE, namespace, name, endpoint_of(found).port)
        async with connection.http(path, limits=ALL_AT_ONCE, timeout=_TIMEOUT) as http:
            yield Target(http, shown, PROXIED, advice, is_chunked=True)
        return
    pods = await ready_pods(connection.kube, namespace, name)
    if not pods:
        seen = assess(found, ConditionType.AVAILABLE, was_there=True)
        raise CliError(f"{name} has no ready replica to forward a port to: {seen}", seen.remedy or advice)
    notes = [f"pod {pods[0].pod}{f', of {len(pods)} ready replicas this one alone' if pods[1:] else ''}", SLOWER]
    way = forwarded(connection, pods[0], timeout=_TIMEOUT, headers=headers_of(key), limits=ALL_AT_ONCE)
    async with way as (http, forward):
        yield Target(http, shown, FORWARDED, advice, notes=notes, forward=forward, redactor=hiding(key))


async def ready_pods(kube: Api, namespace: str, name: str) -> list[PodPort]:
    """Where the servers of the service's ready replicas listen, by name."""
    found = await kube.list_all(POD, namespace, label_selector=selector_text(name))
    pods = replicas(map(PodFacts.from_object, found))
    return [
        PodPort(namespace, pod, HTTP_PORT) for pod in sorted(pod.name for pod in pods if pod.ready and not pod.deleting)
    ]


async def url_inside(found: Json, options: Scope) -> str | None:
    """The Service's address where this runs in a pod of the cluster that it talks to."""
    is_other = options.kubeconfig or options.context or os.environ.get("KUBECONFIG")
    if not os.environ.get("KUBERNETES_SERVICE_HOST") or is_other:
        return None
    host, port = f"{found['metadata']['name']}.{found['metadata']['namespace']}.svc", endpoint_of(found).port
    with contextlib.suppress(socket.gaierror):
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return f"http://{host}:{port}"
    return None
