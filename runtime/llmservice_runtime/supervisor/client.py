"""The supervisor's requests to vLLM over loopback: HTTP, access, waiting for health, and the first request.

Standard library only, because the package runs in users' images; urllib and http.client would block the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_runtime import access
from llmservice_runtime.access import KeyFile
from llmservice_runtime.bounded_json import Refused, clean, parse
from llmservice_runtime.contract import POD_TOKEN_HEADER, Failure
from llmservice_runtime.failures import failures
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.vllm_process import Flags

_MOST_BYTES = 64 << 20
"""Of a response body; /metrics has the longest."""
_MOST_JSON_BYTES = 8 << 20
_DEPTH = 32
_LONGEST_ERROR = 2048


@dataclass(frozen=True)
class Response:
    status: int
    body: str

    @property
    def error(self) -> str:
        """The error message: from the OpenAI error object, else the start of the body."""
        try:
            document = self.json()
            error = document["error"] if isinstance(document, dict) else None
            text = error.get("message") if isinstance(error, dict) else error
            if isinstance(text, str):
                return clean(text[:_LONGEST_ERROR])
        except (Refused, KeyError):
            pass
        return clean(self.body.strip()[:500])

    def json(self) -> Any:
        """The body's JSON value. Refused where it exceeds the bounds or is not JSON."""
        return parse(self.body, _MOST_JSON_BYTES, _DEPTH, drops_numbers=True)


async def http_request(
    port: int,
    path: str,
    *,
    timeout: float,
    method: str = "GET",
    body: str = "",
    headers: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Response:
    """Send one request on a new connection. `timeout` is in seconds. OSError on no response, timeouts included."""
    try:
        return await asyncio.wait_for(_exchange(host, port, path, method, body, headers or {}), timeout)
    except asyncio.TimeoutError as error:  # noqa: UP041 - another class before Python 3.11
        raise OSError(f"no answer to {method} {path} within {timeout:g} s") from error


async def _exchange(host: str, port: int, path: str, method: str, body: str, headers: Mapping[str, str]) -> Response:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        payload = body.encode()
        named = f"[{host}]" if ":" in host else host
        lines = [f"{method} {path} HTTP/1.1", f"Host: {named}:{port}", "Connection: close", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if payload:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        await writer.drain()
        return await _read(reader)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Response:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _read_chunks(reader)
        elif "content-length" in headers:
            body = await reader.readexactly(_bounded(int(headers["content-length"])))
        else:
            body = await reader.read()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise OSError(f"not an HTTP answer: {error}") from error
    return Response(status, body.decode(errors="replace"))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return bytes(body)


def _bounded(size: int) -> int:
    if size > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    return size


# Generating models first, then the endpoints of pooling models.
REQUESTS = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0}),
    ("/v1/embeddings", {"input": "a"}),
    ("/pooling", {"input": "a"}),
    ("/classify", {"input": "a"}),
)


class SmokeFailed(Exception):
    """The first request failed."""


async def healthy(port: int, poll_seconds: float) -> None:
    """Poll /health until it returns 200; connections are refused while vLLM loads."""
    while True:
        with contextlib.suppress(OSError):
            if (await http_request(port, "/health", timeout=5)).status == 200:
                return
        await asyncio.sleep(poll_seconds)


async def first_request(flags: Flags, headers: Mapping[str, str], *, timeout: float) -> str:
    """Send a first request; returns the path that answered 200. SmokeFailed if none did, OSError if the connection
    broke."""
    for path, fields in REQUESTS:
        body = json.dumps({"model": flags.model_names[0] if flags.model_names else "", **fields})
        response = await http_request(flags.port, path, method="POST", body=body, headers=headers, timeout=timeout)
        if response.status == 200:
            return path
        if not _is_absent(response):
            raise SmokeFailed(f"POST {path} answered {response.status}: {response.error}")
    raise SmokeFailed("none of " + ", ".join(path for path, _ in REQUESTS) + " exists on this server")


def _is_absent(response: Response) -> bool:
    """Whether the route is missing or not supported by this model; an unknown model name is another kind of 404."""
    return response.status in (404, 405, 501) and "NotFoundError" not in response.body


_GUARDED = "/v1/models"
_SECONDS = 60.0


class Access:
    """Access to one server."""

    def __init__(
        self, options: ServeOptions, flags: Flags, environment: Mapping[str, str], log: Callable[[str], None]
    ) -> None:
        token = access.make_pod_token(options.drain_file)
        self.headers: Mapping[str, str] = {**flags.authorization(environment), POD_TOKEN_HEADER: token}
        """Headers of the supervisor's requests to vLLM."""
        self._file = KeyFile(options.api_keys_file) if options.api_keys_file else None
        self._log, self._logged = log, ""

    @property
    def keys(self) -> int | None:
        """Number of valid keys; None where no key is required."""
        return None if self._file is None else len(self._file.current().digests)

    def log_changes(self) -> None:
        """Log the state of the keys when it changed."""
        if self._file is None:
            return
        keys = self._file.current()
        line = (
            f"all clients refused: {_place(keys.problem)}" if keys.problem else f"valid API keys: {len(keys.digests)}"
        )
        if line != self._logged:
            self._log(line)
        self._logged = line

    def failure(self) -> Failure | None:
        """The failure where keys are required and none is valid; None otherwise."""
        problem = "" if self._file is None else self._file.current().problem
        return failures.api_key_unusable(_place(problem)) if problem else None

    async def check_guarded(self, port: int) -> Failure | None:
        """The failure where keys are required and vLLM serves a request without one (no middleware); None otherwise."""
        if self._file is None:
            return None
        status = (await http_request(port, _GUARDED, timeout=_SECONDS)).status
        if status == 401:
            return None
        return failures.api_key_unusable(f"vLLM answered GET {_GUARDED} without a key, with {status}")


def _place(problem: str) -> str:
    return f"the Secret's key that spec.endpoint.apiKeySecretRef names is mounted, but {problem}"
