"""The server under load: a LLMService through the API server's service proxy, or any URL directly."""

from __future__ import annotations

import argparse
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from llmservice_operator.api.constants import DEFAULT_ENDPOINT_PORT
from llmservice_operator.kube.resources import SERVICE, proxy_path

from llmservice_cli.cluster import Connection, connect
from llmservice_cli.completion import error_text
from llmservice_cli.errors import CliError
from llmservice_cli.status.snapshot import Json, service

CONNECT_SECONDS = 10.0
# No queue in the client: what waits, waits at the server. No proxy of the environment: it would be measured too.
HTTP_OPTIONS: dict[str, Any] = {
    "limits": httpx.Limits(max_connections=None, max_keepalive_connections=None),
    "timeout": httpx.Timeout(None, connect=CONNECT_SECONDS),
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


@asynccontextmanager
async def open_target(options: argparse.Namespace) -> AsyncIterator[Target]:
    """By the flags of the command; nothing is sent to the server yet."""
    if options.url:
        async with _direct(options.url, api_key(options.api_key_env)) as target:
            yield target
        return
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name)
        _refuse_api_key(found, options)
        async with _proxied(connection, found) as target:
            yield target


def api_key(variable: str | None) -> str | None:
    """The first of the keys in an environment variable: a Secret may hold several, one a line."""
    if variable is None:
        return None
    if lines := [line.strip() for line in os.environ.get(variable, "").splitlines() if line.strip()]:
        return lines[0]
    raise CliError(f"the environment variable {variable} is empty or not set", f"export {variable}=KEY")


def _refuse_api_key(found: Json, options: argparse.Namespace) -> None:
    """The API server takes the Authorization header for itself and removes it: a key cannot pass."""
    if options.api_key_env or (found["spec"].get("endpoint") or {}).get("apiKeySecretRef"):
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        raise CliError(
            "an API key cannot pass through the API server's proxy",
            f"kubectl port-forward -n {namespace} service/{name} 8000:{_port(found)}, and then "
            "llmservice bench --url http://127.0.0.1:8000 --api-key-env VARIABLE",
        )


@asynccontextmanager
async def _direct(url: str, api_key: str | None) -> AsyncIterator[Target]:
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        client = httpx.AsyncClient(
            base_url=base, headers=headers, verify=ssl.create_default_context(), trust_env=False, **HTTP_OPTIONS
        )
    except httpx.InvalidURL as error:
        raise CliError(f"{url} is not a URL: {error}", "give one such as http://127.0.0.1:8000") from error
    async with client:
        yield Target(client, base, "direct", "check the address, and that the server is up")


@asynccontextmanager
async def _proxied(connection: Connection, found: Json) -> AsyncIterator[Target]:
    name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    async with connection.http(proxy_path(SERVICE, namespace, name, _port(found)), **HTTP_OPTIONS) as client:
        advice = f"look at it: llmservice status {name} -n {namespace}"
        yield Target(client, f"{namespace}/{name}", "through the API server", advice)


def _port(found: Json) -> int:
    return int((found["spec"].get("endpoint") or {}).get("port", DEFAULT_ENDPOINT_PORT))


async def look(target: Target, wanted: str | None) -> Served:
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
    if answer.status_code == 401:
        raise CliError(
            f"{target.name} answers 401: {error_text(answer.content)}",
            "name the environment variable that holds the API key: --api-key-env VARIABLE",
        )
    if answer.status_code == 403:
        raise CliError(
            f"{target.name} answers 403: {error_text(answer.content)}",
            "the rights get and create on services/proxy are needed",
        )
    if answer.is_error:
        raise CliError(f"{target.name} answers {answer.status_code}: {error_text(answer.content)}", target.advice)
    return answer


async def _version(target: Target) -> str | None:
    """vLLM says it; other servers of the API need not."""
    try:
        answer = await target.http.get("/version")
        return str(answer.json()["version"]) if answer.status_code == 200 else None
    except (httpx.RequestError, json.JSONDecodeError, KeyError, TypeError):
        return None
