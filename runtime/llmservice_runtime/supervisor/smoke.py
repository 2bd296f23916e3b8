"""One real request before the first client's: some engines come up and die on their first forward pass."""

from __future__ import annotations

import json
from collections.abc import Mapping

from llmservice_runtime.supervisor.loopback import Answer, ask
from llmservice_runtime.supervisor.vllm_process import Flags

# Where a generating model answers; then what pooling models have instead.
_REQUESTS = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0}),
    ("/v1/embeddings", {"input": "a"}),
    ("/pooling", {"input": "a"}),
    ("/classify", {"input": "a"}),
)


class SmokeFailed(Exception):
    """The engine did not answer its first request properly."""


async def first_request(flags: Flags, headers: Mapping[str, str], *, timeout: float) -> str:
    """The path that answered. SmokeFailed when none did; OSError when the connection broke."""
    for path, fields in _REQUESTS:
        body = json.dumps({"model": flags.model_names[0] if flags.model_names else "", **fields})
        answer = await ask(flags.port, path, method="POST", body=body, headers=headers, timeout=timeout)
        if answer.status == 200:
            return path
        if not _is_absent(answer):
            raise SmokeFailed(f"POST {path} answered {answer.status}: {answer.error}")
    raise SmokeFailed("none of " + ", ".join(path for path, _ in _REQUESTS) + " exists on this server")


def _is_absent(answer: Answer) -> bool:
    """No such route, or one that this model does not do; a model name that is not there is another 404."""
    return answer.status in (404, 405, 501) and "NotFoundError" not in answer.body
