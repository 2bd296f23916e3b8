"""The server under load: an LLMService through the API server's service proxy, or any URL directly."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from llmservice_operator.kube.resources import SERVICE, proxy_path

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError, WrongUsage
from llmservice_cli.services import endpoint_of, service

from .completion import error_text
from .options import Server

CONNECT_SECONDS = 10.0
ALL_AT_ONCE = httpx.Limits(max_connections=None, max_keepalive_connections=None)
"""No queue in the client: what waits, waits at the server."""
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
    """For --url with the key of --api-key-env. No proxy of the environment: it would be measured too."""
    key = _api_key(options.api_key_env)
    try:
        return httpx.AsyncClient(
            base_url=base_of(options.url or ""),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=limits,
            timeout=httpx.Timeout(None, connect=connect_seconds),
            verify=ssl.create_default_context(),
            trust_env=False,
        )
    except httpx.InvalidURL as error:
        raise CliError(f"{options.url} is not a URL: {error}", "give one such as http://127.0.0.1:8000") from error


def _api_key(variable: str | None) -> str | None:
    """The first of the keys in an environment variable: a Secret may hold several, one a line."""
    if variable is None:
        return None
    if lines := [line.strip() for line in os.environ.get(variable, "").splitlines() if line.strip()]:
        return lines[0]
    raise CliError(f"the environment variable {variable} is empty or not set", f"export {variable}=KEY")


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
    answer = await _get(target, "/v1/models")
    try:
        models = [str(model["id"]) for model in answer.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CliError(
            f"{target.name} answers /v1/models with something else than a list of models: {answer.text[:200]}",
            "give the address of a server of the OpenAI API, without a path",
        ) from error
    if not models or (wanted is not None and wanted not in models):
        raise CliError(
            f"{target.name} does not serve a model named {wanted!r}" if wanted else f"{target.name} serves no model",
            f"choose one with --model: {', '.join(models)}" if models else target.advice,
        )
    return Served(wanted or models[0], await _version(target))


async def _get(target: Target, path: str) -> httpx.Response:
    try:
        answer = await target.http.get(path)
    except httpx.RequestError as error:
        raise CliError(f"no answer from {target.name}: {error or type(error).__name__}", target.advice) from error
    if answer.is_error:
        code = answer.status_code
        raise CliError(f"{target.name} answers {code}: {error_text(answer.content)}", REMEDIES.get(code, target.advice))
    return answer


async def _version(target: Target) -> str | None:
    """vLLM says it; other servers of the API need not."""
    try:
        answer = await target.http.get("/version")
        return str(answer.json()["version"]) if answer.status_code == 200 else None
    except (httpx.RequestError, json.JSONDecodeError, KeyError, TypeError):
        return None
