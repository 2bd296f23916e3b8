"""The server under load: an LLMService through the API server's service proxy, or any URL directly."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from llmservice_operator.kube.resources import SERVICE, proxy_path
from llmservice_runtime.bounded_json import Reader, Refused, clean, parse

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError, WrongUsage
from llmservice_cli.services import endpoint_of, service

from .completion import error_text
from .key import key_of
from .options import Server

CONNECT_SECONDS = 10.0
ALL_AT_ONCE = httpx.Limits(max_connections=None, max_keepalive_connections=None)
"""No queue in the client: what waits, waits at the server."""
IDENTITY: Mapping[str, str] = {"Accept-Encoding": "identity"}
"""For answers that are read with a bound: nothing is unpacked."""
ASK_SECONDS = 30.0
MOST_BYTES = 2**20
"""Both for what a server says of itself."""
MOST_MODELS = 10_000
MODELS_SHOWN = 20
LONGEST_NAME = 500
LONGEST_VERSION = 200
REMEDIES: Mapping[int, str] = {
    401: "name the environment variable that holds the API key: --api-key-env VARIABLE",
    403: "the rights get and create on services/proxy are needed",
}


@dataclass(frozen=True)
class Target:
    """Where requests go, and how the result names it."""

    http: httpx.AsyncClient
    name: str
    way: str
    advice: str
    """What to do when it does not answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the server says of itself."""

    model: str
    version: str | None


def check_server(options: Server, command: str) -> None:
    """One of NAME and --url."""
    if bool(options.name) == bool(options.url):
        raise WrongUsage("the server is named by NAME or by --url", f"give one of them; llmservice {command} --help")


@asynccontextmanager
async def open_target(options: Server) -> AsyncIterator[Target]:
    """Nothing is sent to the server yet."""
    if options.url:
        async with http_client(options, ALL_AT_ONCE, CONNECT_SECONDS) as http:
            yield direct(options.url, http)
        return
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name or "")
        _refuse_api_key(found, options)
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        path = proxy_path(SERVICE, namespace, name, endpoint_of(found).port)
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        async with connection.http(path, limits=ALL_AT_ONCE, timeout=timeout) as http:
            advice = f"look at it: llmservice status {name} -n {namespace}"
            yield Target(http, f"{namespace}/{name}", "through the API server", advice)


def direct(url: str, http: httpx.AsyncClient) -> Target:
    return Target(http, base_of(url), "direct", "check the address, and that the server is up")


def base_of(url: str) -> str:
    """What paths of the OpenAI API are appended to."""
    return url.rstrip("/").removesuffix("/v1")


def http_client(options: Server, limits: httpx.Limits, connect_seconds: float) -> httpx.AsyncClient:
    """For --url with the key of --api-key-env."""
    key = key_of(options.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return client_of(options.url or "", headers, limits, httpx.Timeout(None, connect=connect_seconds))


def client_of(url: str, headers: Mapping[str, str], limits: httpx.Limits, timeout: httpx.Timeout) -> httpx.AsyncClient:
    """Trusts the authorities of the system, and uses no proxy of the environment: it would be measured too."""
    try:
        return httpx.AsyncClient(
            base_url=base_of(url),
            headers=headers,
            limits=limits,
            timeout=timeout,
            verify=ssl.create_default_context(),
            trust_env=False,
        )
    except httpx.InvalidURL as error:
        raise CliError(f"{url} is not a URL: {error}", "give one such as http://127.0.0.1:8000") from error


def _refuse_api_key(found: Json, options: Server) -> None:
    """The API server takes the Authorization header for itself and removes it: a key cannot pass."""
    endpoint = endpoint_of(found)
    if options.api_key_env or endpoint.key:
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        raise CliError(
            "an API key cannot pass through the API server's proxy",
            f"kubectl port-forward -n {namespace} service/{name} 8000:{endpoint.port}, and then "
            "llmservice bench --url http://127.0.0.1:8000 --api-key-env VARIABLE",
        )


async def inspect(target: Target, wanted: str | None) -> Served:
    """The model to ask for; CliError where the server is not there, refuses us or does not serve it."""
    status, body = await _read(target, "/v1/models")
    if status >= 400:
        raise CliError(f"{target.name} answers {status}: {error_text(body)}", REMEDIES.get(status, target.advice))
    try:
        models = models_in(body)
    except Refused as why:
        beginning = clean(body[:200].decode(errors="replace"))
        raise CliError(
            f"{target.name} answers /v1/models with something else than a list of models ({why}): {beginning}",
            "give the address of a server of the OpenAI API, without a path",
        ) from why
    if not models or (wanted is not None and wanted not in models):
        more = f", and {len(models) - MODELS_SHOWN} more" if len(models) > MODELS_SHOWN else ""
        raise CliError(
            f"{target.name} does not serve a model named {wanted!r}" if wanted else f"{target.name} serves no model",
            f"choose one with --model: {', '.join(models[:MODELS_SHOWN])}{more}" if models else target.advice,
        )
    return Served(wanted or models[0], await _version(target))


def models_in(body: bytes) -> list[str]:
    """The names in an answer to /v1/models; Refused where it is none. They have no control characters."""
    answer = Reader(parse(body, MOST_BYTES, drops_numbers=True), "the answer")
    if not answer.has("data"):
        raise Refused("data is missing")
    return [Reader(model, "a model").word("id", LONGEST_NAME) for model in answer.items("data", MOST_MODELS)]


async def _version(target: Target) -> str | None:
    """vLLM says it; other servers of the API need not."""
    try:
        status, body = await _read(target, "/version")
        return Reader(parse(body)).text("version", LONGEST_VERSION) if status == 200 else None
    except (CliError, Refused):
        return None


async def _read(target: Target, path: str) -> tuple[int, bytes]:
    """The status and the body; CliError where it does not come in time, or is too long."""
    whole = bytearray()
    try:
        async with asyncio.timeout(ASK_SECONDS), target.http.stream("GET", path, headers=IDENTITY) as answer:
            async for data in answer.aiter_raw():
                whole += data
                if len(whole) > MOST_BYTES:
                    raise CliError(f"{target.name} answers {path} with more than {MOST_BYTES} bytes", target.advice)
            return answer.status_code, bytes(whole)
    except TimeoutError as error:
        raise CliError(
            f"no whole answer from {target.name} to {path} within {ASK_SECONDS:g} s", target.advice
        ) from error
    except httpx.RequestError as error:
        why = clean(str(error)[:200]) or type(error).__name__
        raise CliError(f"no answer from {target.name}: {why}", target.advice) from error
