"""Requests of the commands, sent by the `kubernetes` package's client for asyncio.

Its generated methods are left aside: they read every object into classes that drop fields and refuse values, while the
commands show objects as they are, however odd what users have stored in them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
from llmservice_operator.kube.client import PAGE
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.errors import NotFound, Unreachable
from llmservice_operator.kube.resources import Resource, proxy_path
from llmservice_operator.kube.transport import (
    CONNECT_TIMEOUT,
    METHODS,
    REQUEST_TIMEOUT,
    failure,
    with_retries,
    with_subresource,
)
from llmservice_operator.kube.wire import parsed

FIELD_MANAGER = USER_AGENT = "llmservice-cli"
MERGE_PATCH = "application/merge-patch+json"

Json = dict[str, Any]


class Api:
    """One API server; use it as a context manager. Failures are those of kube.errors."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._client: Any = None

    async def __aenter__(self) -> Self:
        # A third of a second of CPU time, which `--help` and `plan` do not need.
        from kubernetes.aio.client import ApiClient, Configuration

        configuration = Configuration(
            host=self._credentials.server,
            proxy=self._credentials.proxy,
            client_session_kwargs={"trust_env": False},
        )
        if await self._credentials.token() is not None:
            configuration.api_key["BearerToken"] = ""
            configuration.refresh_api_key_hook = self._sign
        self._client = ApiClient(configuration)
        self._client.user_agent = USER_AGENT
        if context := self._credentials.ssl_context():
            self._client.rest_client.ssl_context = context
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def _sign(self, configuration: Any) -> None:
        """Called by the client before each request: tokens end."""
        configuration.api_key["BearerToken"] = f"Bearer {await self._credentials.token()}"

    # Reads

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, or None where there is none."""
        try:
            return await self._json("get", resource, resource.path(namespace, name))
        except NotFound:
            return None

    async def list_all(self, resource: Resource, namespace: str | None, *, label_selector: str = "") -> list[Json]:
        """The items of one namespace, or of all, read in pages."""
        params = {"limit": str(PAGE), "labelSelector": label_selector}
        found: list[Json] = []
        while True:
            page = await self._json("list", resource, resource.path(namespace), params=params)
            found += page.get("items") or ()
            params["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not params["continue"]:
                return found

    async def list_named(self, resource: Resource, namespace: str, name: str) -> Json:
        """A list of one, or of none: with the resourceVersion from which `events` goes on."""
        params = {"fieldSelector": f"metadata.name={name}"}
        return await self._json("list", resource, resource.path(namespace), params=params)

    async def events(
        self, resource: Resource, namespace: str, name: str, *, since: str, seconds: int, silence: float
    ) -> AsyncGenerator[Json, None]:
        """What a watch brings until the server ends it; it is asked to after some `seconds`.

        Unreachable where it breaks off, or says nothing for `silence` seconds.
        """
        path, right = resource.path(namespace), f"watch {resource.full_name}"
        params = {
            "fieldSelector": f"metadata.name={name}",
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(seconds),
        }
        patience = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        with _reached(f"watch {path}", silence):
            response = await self._send("GET", path, params=params, timeout=patience)
            try:
                if response.status == 401:
                    self._credentials.token.forget()
                if response.status >= 400:
                    raise failure(response.status, await response.read(), right=right, retry_after=None)
                async for line in response.content:
                    yield await _object(line)
            finally:
                response.close()

    async def proxied(self, resource: Resource, namespace: str, name: str, port: int, path: str) -> str:
        """What a pod or Service answers to GET on `port`, through the API server; `path` starts with a slash."""
        whole = proxy_path(resource, namespace, name, port) + path
        return (await self._bytes("get", resource, whole, accept="*/*")).decode(errors="replace")

    # Writes

    async def create(self, resource: Resource, manifest: Mapping[str, Any]) -> Json:
        """A plain create, which needs no other right, as an apply would."""
        return await self._json("create", resource, resource.path(manifest["metadata"]["namespace"]), body=manifest)

    async def merge(self, resource: Resource, namespace: str, name: str, change: Mapping[str, Any]) -> Json:
        """A merge patch: these fields and no others. A field that the kind does not have is an error, not dropped."""
        params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        path = resource.path(namespace, name)
        return await self._json("patch", resource, path, params=params, body=change, content_type=MERGE_PATCH)

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, grace: int) -> None:
        """This very object, not a later one of its name; none there is no error."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, "gracePeriodSeconds": grace}
        try:
            await self._json("delete", resource, resource.path(namespace, name), body=body)
        except NotFound:
            return

    async def _json(self, verb: str, resource: Resource, path: str, **request: Any) -> Json:
        raw = await self._bytes(verb, resource, path, **request)
        with _reached(f"{verb} {path}", REQUEST_TIMEOUT):
            return await _object(raw)

    async def _bytes(self, verb: str, resource: Resource, path: str, **request: Any) -> bytes:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)

        async def once() -> bytes:
            with _reached(f"{verb} {path}", REQUEST_TIMEOUT):
                response = await self._send(METHODS[verb], path, timeout=timeout, **request)
                raw: bytes = await response.read()
            if response.status < 400:
                return raw
            right, retry_after = f"{verb} {with_subresource(resource, path)}", response.headers.get("Retry-After")
            raise failure(response.status, raw, right=right, retry_after=retry_after)

        return await with_retries(once, self._credentials.token.forget)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        params: Mapping[str, str] = {},
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> aiohttp.ClientResponse:
        given = [(key, value) for key, value in params.items() if value]
        request = await self._client.param_serialize(
            method,
            path,
            query_params=given,
            header_params={"Accept": accept, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        method, url, headers, *_ = request
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response


async def _object(raw: bytes) -> Json:
    """ValueError where it is none, such as a proxy's own page."""
    answer = await parsed(raw)
    if not isinstance(answer, dict):
        raise ValueError("no object")
    return answer


@contextmanager
def _reached(what: str, seconds: float) -> Iterator[None]:
    """No answer, or nothing that an API server says, as Unreachable."""
    try:
        yield
    except TimeoutError as error:
        raise Unreachable(f"no answer within {seconds:.0f} s: {what}") from error
    except aiohttp.ClientError as error:
        raise Unreachable(f"{what}: {error}") from error
    except ValueError as error:
        raise Unreachable(f"the answer is no API server's: {what}") from error
