"""The server under load, what it says of itself, and HTTP clients for it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from kubeloop.errors import Forbidden, KubeError
from kubeloop.resources import Resource
from llmservice_runtime.bounded_json import Reader, Refused, clean, parse
from llmservice_runtime.redact import Redactor

from llmservice_cli.api import Api, Json
from llmservice_cli.errors import CliError, WrongUsage
from llmservice_cli.forward import Forward
from llmservice_cli.services import endpoint_of
from llmservice_cli.text import shown

from .answer import Failure, Loss, error_text
from .options import Server

CONNECT_SECONDS = 10.0
ALL_AT_ONCE = httpx.Limits(max_connections=None, max_keepalive_connections=None)
"""No queue in the client: what waits, waits at the server."""
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


@dataclass(frozen=True, slots=True)
class Served:
    """What the server says of itself."""

    model: str
    version: str | None


def check_server(options: Server, command: str) -> None:
    """One of NAME and --url."""
    if bool(options.name) == bool(options.url):
        raise WrongUsage("the server is named by NAME or by --url", f"give one of them; llmservice {command} --help")


def direct(url: str, http: httpx.AsyncClient, key: str = "") -> Target:
    """What is reached without a cluster."""
    advice = "check the address, and that the server is up"
    return Target(http, base_of(url), "direct", advice, redactor=hiding(key))


def base_of(url: str) -> str:
    """What paths of the OpenAI API are appended to."""
    return url.rstrip("/").removesuffix("/v1")


def http_client(options: Server, limits: httpx.Limits, connect_seconds: float) -> httpx.AsyncClient:
    """For --url with the key of --api-key-env."""
    headers = headers_of(key_of(options.api_key_env))
    return client_of(options.url or "", headers, limits, httpx.Timeout(None, connect=connect_seconds))


def client_of(url: str, headers: Mapping[str, str], limits: httpx.Limits, timeout: httpx.Timeout) -> httpx.AsyncClient:
    """Trusts the authorities of the system, and uses no proxy of the environment: it would be measured too."""
    try:
        parts = httpx.URL(base_of(url))
        if parts.scheme not in ("http", "https") or not parts.host:
            raise httpx.InvalidURL("it has to begin with http:// or https:// and a host")
        return httpx.AsyncClient(
            base_url=parts,
            headers=headers,
            limits=limits,
            timeout=timeout,
            verify=ssl.create_default_context(),
            trust_env=False,
        )
    except httpx.InvalidURL as error:
        raise WrongUsage(
            f"{shown(url)} is not the URL of a server: {error}", "give one such as http://127.0.0.1:8000"
        ) from error


async def inspect(target: Target, wanted: str | None) -> Served:
    """The model to ask for; CliError where the server is not there, refuses us or does not serve it."""
    status, body = await _read(target, "/v1/models")
    if status >= 400:
        raise CliError(
            f"{target.name} answers {status}: {target.words(error_text(body))}", REMEDIES.get(status, target.advice)
        )
    try:
        models = models_in(body)
    except Refused as why:
        beginning = target.words(body[:200].decode(errors="replace"))
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
        why = target.broken(str(error)[:200]) or type(error).__name__
        raise CliError(f"no answer from {target.name}: {why}", target.advice) from error


# The API key of requests: from the environment, or from the Secret of a service's spec. It is never printed.

IDENTITY: Mapping[str, str] = {"Accept-Encoding": "identity"}
"""For answers that are read with a bound: nothing is unpacked."""
SECRET = Resource("", "v1", "secrets", "Secret")
LONGEST = 4096
"""Characters of a key."""


def key_in(text: str) -> str:
    """The first line that is not empty: a Secret may hold several keys, one a line. Empty where a header cannot hold
    it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if line.isascii() and line.isprintable() and len(line) <= LONGEST else ""


def key_of(variable: str | None) -> str:
    """The key in an environment variable, empty where none is named; CliError where there is none in it."""
    if variable is None:
        return ""
    text = os.environ.get(variable, "")
    if key := key_in(text):
        return key
    raise CliError(
        f"the environment variable {variable} has no key that can be sent: a key is at most {LONGEST} characters of "
        "printable ASCII"
        if text.strip()
        else f"the environment variable {variable} is empty or not set",
        f"export {variable}=KEY",
    )


def headers_of(key: str) -> Mapping[str, str]:
    """Of every request; without the key's where there is none."""
    return {**IDENTITY, "Authorization": f"Bearer {key}"} if key else IDENTITY


def hiding(key: str) -> Redactor:
    """Takes the key out of what the server says."""
    redactor = Redactor({})
    redactor.hide(key)
    return redactor


async def from_secret(kube: Api, service: Json) -> tuple[str, str] | None:
    """The key, and in words where it is from; None where the service has none."""
    reference = endpoint_of(service).key
    if not reference:
        return None
    namespace, name, entry = service["metadata"]["namespace"], str(reference["name"]), str(reference["key"])
    place = f"the key {entry!r} of the Secret {name!r} in namespace {namespace}"
    try:
        found = await kube.get(SECRET, namespace, name)
    except Forbidden as error:
        raise CliError(
            f"the service needs an API key, and you may not read {place}",
            "set it in the environment and name the variable: --api-key-env VARIABLE",
        ) from error
    except KubeError as error:
        raise CliError(
            f"{place} cannot be read: {error.message}", "--api-key-env VARIABLE names another place"
        ) from error
    if key := key_in(_decoded(((found or {}).get("data") or {}).get(entry))):
        return key, place
    raise CliError(
        f"{place} does not exist or is empty", "write it, or name a variable with a key: --api-key-env VARIABLE"
    )


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
