"""Waits until the server answers, and sends one request: some engines start and fail in their first forward pass."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping

from llmservice_runtime.supervisor.loopback import Response, http_request
from llmservice_runtime.supervisor.vllm_process import Flags

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
    """The path that returned 200. SmokeFailed where none did, OSError where the connection broke."""
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
