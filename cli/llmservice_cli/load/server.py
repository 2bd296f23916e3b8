"""The server under load: the way to it, its API key, and what it says of itself.

An LLMService is reached by its Service from a pod of the cluster, else through the API server's proxy, and with an API
key, which that proxy removes, through a port-forward to a pod. Or any server at its URL.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from kubeloop.errors import Forbidden, KubeError
from kubeloop.resources import POD, SERVICE, Resource, proxy_path
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import selector_text
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_runtime.bounded_json import Reader, Refused, clean, parse
from llmservice_runtime.contract import HTTP_PORT
from llmservice_runtime.redact import Redactor

from llmservice_cli.api import Api, Json
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.errors import CliError, WrongUsage
from llmservice_cli.forward import Forward, PodPort, forwarded
from llmservice_cli.options import Scope
from llmservice_cli.services import endpoint_of, service
from llmservice_cli.text import shown
from llmservice_cli.wait.command import assess

from .answer import Failure, Loss, error_text
from .client import IDENTITY, beginning
from .options import Server

CONNECT_SECONDS = 10.0
TIMEOUT = httpx.Timeout(None, connect=CONNECT_SECONDS)
ALL_AT_ONCE = httpx.Limits(max_connections=None, max_keepalive_connections=None)
"""No queue in the client: what waits, waits at the server."""
ASK_SECONDS = 30.0
MOST_BYTES = 2**20
"""Both for what a server says of itself."""
MOST_MODELS = 10_000
MODELS_SHOWN = 20
LONGEST_NAME = 500
LONGEST_VERSION = 200
LONGEST_KEY = 4096
"""Characters."""
PROXIED, FORWARDED, INSIDE = "through the API server", "through a port-forward", "in the cluster"
SLOWER = (
    "all requests share one pod's port-forward, which is slower than the network: in the cluster, or with --url, the"
    " server alone is measured"
)
REMEDIES: Mapping[int, str] = {
    401: "name the environment variable that holds the API key: --api-key-env VARIABLE",
    403: "the rights get and create on services/proxy are needed",
}
SECRET = Resource("", "v1", "secrets", "Secret")


@dataclass(frozen=True)
class Destination:
    """Where requests go, and how the result names it."""

    http: httpx.AsyncClient
    name: str
    way: str
    advice: str
    """What to do when it does not answer."""
    is_chunked: bool = False
    """Whether requests have to be, as for the API server's proxy."""
    notes: Sequence[str] = ()
    """What the way does to the figures."""
    forward: Forward | None = None
    redactor: Redactor = field(default_factory=lambda: hiding(""))
    """Takes the API key out of what the server says."""

    def words(self, error: str) -> str:
        """What a server or a connection says, cleaned."""
        return clean(self.redactor.clean(error))

    def broken(self, error: str) -> str:
        """Why a connection ended: what a port-forward says is the cause of what the client sees."""
        cause = None if self.forward is None else self.forward.error
        return self.words(error if cause is None else cause.message)

    def describe(self, failure: Failure) -> str:
        """Why a request was not answered."""
        is_of_connection = failure.loss in (Loss.NOT_CONNECTED, Loss.DISCONNECTED, Loss.CUT)
        return self.broken(failure.error) if is_of_connection else self.words(failure.error)


@asynccontextmanager
async def open_target(options: Server, say: Callable[[str], None] | None) -> AsyncIterator[Destination]:
    """Nothing is sent to the server yet. `say`, where there is one, takes where an API key is from."""
    if options.url:
        key = key_of(options.api_key_env)
        async with client_of(options.url, headers_of(key)) as http:
            yield direct(options.url, http, key)
        return
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name or "")
        key = await service_key(connection.kube, found, options.api_key_env, say)
        async with _of_service(connection, found, key, await url_inside(found, options)) as target:
            yield target


@asynccontextmanager
async def _of_service(connection: Connection, found: Json, key: str, inside: str | None) -> AsyncIterator[Destination]:
    name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    title, advice = f"{namespace}/{name}", f"look at it: llmservice status {name} -n {namespace}"
    if inside is not None:
        async with client_of(inside, headers_of(key)) as http:
            yield Destination(http, title, INSIDE, advice, redactor=hiding(key))
        return
    if not key:
        path = proxy_path(SERVICE, namespace, name, endpoint_of(found).port)
        async with connection.http(path, limits=ALL_AT_ONCE, timeout=TIMEOUT) as http:
            yield Destination(http, title, PROXIED, advice, is_chunked=True)
        return
    pods = await ready_pods(connection.kube, namespace, name)
    if not pods:
        seen = assess(found, ConditionType.AVAILABLE, was_there=True)
        raise CliError(f"{name} has no ready replica to forward a port to: {seen}", seen.remedy or advice)
    notes = [f"pod {pods[0].pod}{f', of {len(pods)} ready replicas this one alone' if pods[1:] else ''}", SLOWER]
    way = forwarded(connection, pods[0], timeout=TIMEOUT, headers=headers_of(key), limits=ALL_AT_ONCE)
    async with way as (http, forward):
        yield Destination(http, title, FORWARDED, advice, notes=notes, forward=forward, redactor=hiding(key))


async def ready_pods(kube: Api, namespace: str, name: str) -> Sequence[PodPort]:
    """Where the servers of the service's ready replicas listen, by name; of those over several nodes the pods that
    answer requests."""
    found = await kube.list_all(POD, namespace, label_selector=selector_text(name))
    pods = replicas(map(PodFacts.from_object, found))
    names = sorted(pod.name for pod in pods if pod.ready and pod.has_api and not pod.deleting)
    return [PodPort(namespace, pod, HTTP_PORT) for pod in names]


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


def direct(url: str, http: httpx.AsyncClient, key: str = "") -> Destination:
    """What is reached without a cluster."""
    return Destination(
        http, base_of(url), "direct", "check the address, and that the server is up", redactor=hiding(key)
    )


def base_of(url: str) -> str:
    """What paths of the OpenAI API are appended to."""
    return url.rstrip("/").removesuffix("/v1")


def client_of(
    url: str, headers: Mapping[str, str], limits: httpx.Limits = ALL_AT_ONCE, timeout: httpx.Timeout = TIMEOUT
) -> httpx.AsyncClient:
    """Trusts the authorities of the system, and uses no proxy of the environment: it would be measured too."""
    try:
        parts = httpx.URL(base_of(url))
        if parts.scheme not in ("http", "https") or not parts.host:
            raise httpx.InvalidURL("it has to begin with http:// or https:// and a host")
        trusted = ssl.create_default_context()
        return httpx.AsyncClient(
            base_url=parts, headers=headers, limits=limits, timeout=timeout, verify=trusted, trust_env=False
        )
    except httpx.InvalidURL as error:
        raise WrongUsage(
            f"{shown(url)} is not the URL of a server: {error}", "give one such as http://127.0.0.1:8000"
        ) from error


# The API key: from the environment, or from the Secret of a service's spec. It is never printed.


async def service_key(kube: Api, found: Json, variable: str | None, say: Callable[[str], None] | None) -> str:
    """The API key in the environment variable, else of the service's Secret, which `say` is given; empty where the
    service has none."""
    reference = endpoint_of(found).key
    if variable is not None or not reference:
        return key_of(variable)
    namespace, name, entry = found["metadata"]["namespace"], str(reference["name"]), str(reference["key"])
    place = f"the key {entry!r} of the Secret {name!r} in namespace {namespace}"
    try:
        secret = await kube.get(SECRET, namespace, name) or {}
    except Forbidden as error:
        raise CliError(
            f"the service needs an API key, and you may not read {place}",
            "set it in the environment and name the variable: --api-key-env VARIABLE",
        ) from error
    except KubeError as error:
        raise CliError(
            f"{place} cannot be read: {error.message}", "--api-key-env VARIABLE names another place"
        ) from error
    key = _key_in(_decoded((secret.get("data") or {}).get(entry)))
    if not key:
        raise CliError(
            f"{place} does not exist or is empty", "write it, or name a variable with a key: --api-key-env VARIABLE"
        )
    if say is not None:
        say(f"the API key is from {place}")
    return key


def key_of(variable: str | None) -> str:
    """The key in an environment variable, empty where none is named; CliError where there is none in it."""
    if variable is None:
        return ""
    text = os.environ.get(variable, "")
    if key := _key_in(text):
        return key
    raise CliError(
        f"the environment variable {variable} has no key that can be sent: a key is at most {LONGEST_KEY} characters of"
        " printable ASCII"
        if text.strip()
        else f"the environment variable {variable} is empty or not set",
        f"export {variable}=KEY",
    )


def _key_in(text: str) -> str:
    """The first line that is not empty: a Secret may hold several keys, one a line. Empty where a header cannot hold
    it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if line.isascii() and line.isprintable() and len(line) <= LONGEST_KEY else ""


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def headers_of(key: str) -> Mapping[str, str]:
    """Of every request; without the key's where there is none."""
    return {**IDENTITY, "Authorization": f"Bearer {key}"} if key else IDENTITY


def hiding(key: str) -> Redactor:
    """Takes the key out of what the server says."""
    redactor = Redactor({})
    redactor.hide(key)
    return redactor


# What the server says of itself.


@dataclass(frozen=True, slots=True)
class Served:
    """`version` is vLLM's; other servers of the API need not say one."""

    model: str
    version: str | None


async def inspect(target: Destination, wanted: str | None) -> Served:
    """The model to ask for; CliError where the server is not there, refuses us or does not serve it."""
    status, body = await _read(target, "/v1/models")
    if status >= 400:
        raise CliError(
            f"{target.name} answers {status}: {target.words(error_text(body))}", REMEDIES.get(status, target.advice)
        )
    try:
        models = models_in(body)
    except Refused as why:
        start = target.words(body[:200].decode(errors="replace"))
        raise CliError(
            f"{target.name} answers /v1/models with something else than a list of models ({why}): {start}",
            "give the address of a server of the OpenAI API, without a path",
        ) from why
    if not models or (wanted is not None and wanted not in models):
        more = f", and {len(models) - MODELS_SHOWN} more" if len(models) > MODELS_SHOWN else ""
        raise CliError(
            f"{target.name} does not serve a model named {wanted!r}" if wanted else f"{target.name} serves no model",
            f"choose one with --model: {', '.join(models[:MODELS_SHOWN])}{more}" if models else target.advice,
        )
    return Served(wanted or models[0], await _version(target))


def models_in(body: bytes) -> Sequence[str]:
    """The names in an answer to /v1/models; Refused where it is none. They have no control characters."""
    answer = Reader(parse(body, MOST_BYTES, drops_numbers=True), "the answer")
    if not answer.has("data"):
        raise Refused("data is missing")
    return [Reader(model, "a model").word("id", LONGEST_NAME) for model in answer.items("data", MOST_MODELS)]


async def _version(target: Destination) -> str | None:
    try:
        status, body = await _read(target, "/version")
        return Reader(parse(body)).text("version", LONGEST_VERSION) if status == 200 else None
    except (CliError, Refused):
        return None


async def _read(target: Destination, path: str) -> tuple[int, bytes]:
    """The status and the body; CliError where it does not come in time, or is too long."""
    try:
        async with asyncio.timeout(ASK_SECONDS), target.http.stream("GET", path, headers=IDENTITY) as answer:
            body = await beginning(answer.aiter_raw(), MOST_BYTES + 1)
    except TimeoutError as error:
        raise CliError(
            f"no whole answer from {target.name} to {path} within {ASK_SECONDS:g} s", target.advice
        ) from error
    except httpx.RequestError as error:
        why = target.broken(str(error)[:200]) or type(error).__name__
        raise CliError(f"no answer from {target.name}: {why}", target.advice) from error
    if len(body) > MOST_BYTES:
        raise CliError(f"{target.name} answers {path} with more than {MOST_BYTES} bytes", target.advice)
    return answer.status_code, body
