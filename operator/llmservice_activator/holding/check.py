"""Decides which requests are answered without a pod and which wait for one. Pure. All text from clients is parsed here.

Paths are compared as sent, without decoding: another spelling of a path is another path.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from llmservice_runtime.access import Keys, bearer
from llmservice_runtime.contract import ACTIVATOR_PATH, KEYLESS_PATHS
from llmservice_vllm.paths import HEALTH, MODEL_POSTS, MULTIPART, STREAMING

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.body import (
    LONGEST_BOUNDARY,
    NotAForm,
    NotAnObject,
    TooMany,
    members,
    parameters,
    parts,
)
from llmservice_activator.holding.interface import HoldingTarget, Reason, Refusal

T = TypeVar("T")

LONGEST_JSON = 32 << 20
"""Bytes that are checked, in up to two seconds of CPU; the worst case is 250,000 short members."""
MAX_PARSED_AT_ONCE = 64 << 10
"""Bytes that are parsed at once, in up to 4 ms. Longer bodies are scanned in slices."""
SLICE_SECONDS = 0.004
"""Seconds of CPU for a body before other tasks run."""
SHORTEST_PAUSE = 0.001
"""Seconds; shorter slices need no pause."""
LONGEST_NAME = 256
"""Characters of a model name that an error repeats."""

NOT_ROUTED = Refusal(
    503,
    "NotRouted",
    "Replicas serve, and the activators forward nothing meanwhile. Send requests to the LLMService's Service.",
)
MODELS = "/v1/models"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body."""

    method: str
    path: str
    """Without the query and the prefix of vLLM's --root-path."""
    headers: Mapping[str, str]
    """By name in any case; of duplicates the first."""

    @property
    def content_type(self) -> str:
        """Media type in lower case, without parameters; empty if absent."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def boundary(self) -> bytes:
        """Boundary of multipart content. Empty if absent, longer than any server accepts, or if names of the form may
        have another encoding than UTF-8."""
        found = parameters(self.headers.get("Content-Type", ""))
        boundary = found.get("boundary", "").encode(errors="replace")
        is_utf8 = found.get("charset", "utf-8").lower() in ("utf-8", "utf8", "us-ascii", "ascii")
        return boundary if is_utf8 and len(boundary) <= LONGEST_BOUNDARY else b""

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 before it sends the body."""
        return self.headers.get("Expect", "").lower() == "100-continue"

    @property
    def is_preflight(self) -> bool:
        """Whether this is a CORS preflight, which has no API key. As in the runtime's middleware."""
        return self.method == "OPTIONS" and "Origin" in self.headers and "Access-Control-Request-Method" in self.headers

    @property
    def length(self) -> int:
        """Content-Length, or 0."""
        text = self.headers.get("Content-Length", "0")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def routed(path: str, root: str) -> str:
    """The path without vLLM's --root-path, as in the runtime's middleware."""
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def before_pods(head: RequestHead, target: HoldingTarget, keys: Keys | None) -> Answer | None:
    """The response that does not depend on a ready pod; None: a pod may answer."""
    if head.path == ACTIVATOR_PATH:
        return Answer(200, Reason.PROBED, {"uid": target.uid})
    is_keyless = head.path in KEYLESS_PATHS or head.is_preflight
    if keys is not None and not is_keyless and not _is_authorized(head, keys):
        return answer.UNAUTHORIZED
    refusal = target.refusal if target.is_routed else target.refusal or NOT_ROUTED
    if refusal is not None:
        # Without a valid key nobody learns the reason.
        refused = Answer(503, Reason.REFUSED, None) if is_keyless else answer.refused(refusal)
        return _preflight(head, target) or refused
    if head.method == "CONNECT" or head.headers.get("Upgrade", "").lower() == "websocket":
        return answer.UNSUPPORTED
    if "Expect" in head.headers and not head.expects_continue:
        return answer.UNKNOWN_EXPECTATION
    return None if head.path.startswith("/") else answer.UNKNOWN_PATH  # OPTIONS *


def without_pod(head: RequestHead, target: HoldingTarget) -> Answer | None:
    """The response while no pod is ready; None: it depends on the body."""
    if preflight := _preflight(head, target):
        return preflight
    is_get, is_post = head.method == "GET", head.method == "POST"
    if head.path in HEALTH and (is_get or is_post or head.method == "HEAD"):
        return Answer(200, Reason.PROBED, None)
    if head.path == MODELS and is_get:
        return answer.models(target.model_names)
    if head.path not in MODEL_POSTS:
        return answer.UNKNOWN_PATH
    if not is_post:
        return answer.WRONG_METHOD
    if head.content_type not in ("", "application/json") and not _is_multipart(head):
        return answer.invalid("Unsupported Media Type: Only 'application/json' is allowed")
    if head.length > target.max_bytes:
        return answer.too_large(target.max_bytes)
    return None


@dataclass(frozen=True, slots=True)
class NeedsPod:
    """A valid request, which needs a pod."""

    streams: bool
    """Whether the client expects server-sent events."""


def with_body(head: RequestHead, body: bytes, target: HoldingTarget) -> Generator[None, None, Answer | NeedsPod]:
    """Checks the body of a request that passed `without_pod`. `model` may be absent, empty or null, as in vLLM.

    Yields where other tasks may run; `run_in_slices` drives it.
    """
    is_form = _is_multipart(head)
    if len(body) > LONGEST_JSON and not is_form:
        return answer.unparsed(f"JSON of more than {LONGEST_JSON} bytes")
    try:
        found = yield from _form(body, head.boundary) if is_form else _members(body)
    except TooMany as problem:
        return answer.unparsed(str(problem))
    except (NotAnObject, NotAForm) as problem:
        return answer.invalid(str(problem))
    except (ValueError, RecursionError) as problem:
        return answer.invalid(f"The body is not valid JSON: {str(problem)[:LONGEST_NAME]}")
    model = found.get("model")
    if model is not None and not isinstance(model, str):
        return answer.invalid("`model` is not a string.", "model")
    if model and model not in target.model_names:
        return answer.unknown_model(model[:LONGEST_NAME], target.model_names)
    return NeedsPod(streams=found.get("stream") is True and head.path in STREAMING)


def _members(body: bytes) -> Generator[None, None, Mapping[str, object]]:
    """`model` and `stream`; in a short body parsed as in vLLM, so that no valid body is refused."""
    if len(body) <= MAX_PARSED_AT_ONCE:
        document = json.loads(body)
        if not isinstance(document, dict):
            raise NotAnObject("The body is not a JSON object.")
        if not document:
            raise NotAnObject("The body is an empty JSON object.")
        return document
    found = yield from members(body, ("model", "stream"))
    return {name: _value(text) for name, text in found.items()}


def _form(body: bytes, boundary: bytes) -> Generator[None, None, Mapping[str, object]]:
    found = yield from parts(body, boundary)
    if "file" not in found or not found["file"].is_file:
        raise NotAForm("The form has no part `file` with a file name.")
    model = found.get("model")
    return {} if model is None else {"model": () if model.is_file else model.value.decode(errors="replace")}


def _value(text: bytes) -> object:
    """The value of a JSON text; an object or array, given as its first byte, is neither a name nor true."""
    if text in (b"{", b"["):
        return ()
    if text[:1] == b'"' and len(text) > MAX_PARSED_AT_ONCE:
        return text[:MAX_PARSED_AT_ONCE].decode(errors="replace")
    return json.loads(text)


async def run_in_slices(steps: Generator[None, None, T], slice_lock: asyncio.Lock) -> T:
    """Runs the steps in slices of SLICE_SECONDS; returns their result. All bodies share `slice_lock`: one
    slice runs at a time, followed by a pause of its length, so that other tasks get half of the event loop."""
    while True:
        async with slice_lock:
            began, taken = time.thread_time(), 0.0
            try:
                while taken <= SLICE_SECONDS:
                    next(steps)
                    taken = time.thread_time() - began
            except StopIteration as end:
                found: T = end.value
                if (taken := time.thread_time() - began) > SHORTEST_PAUSE:
                    await asyncio.sleep(taken)
                return found
            await asyncio.sleep(taken)


def _preflight(head: RequestHead, target: HoldingTarget) -> Answer | None:
    """vLLM's response to a preflight of any path; None for other requests, and where not all origins are allowed."""
    if not (head.is_preflight and target.any_origin):
        return None
    return answer.preflight(head.headers.get("Access-Control-Request-Headers"))


def _is_multipart(head: RequestHead) -> bool:
    return head.content_type == "multipart/form-data" and head.path in MULTIPART


def _is_authorized(head: RequestHead, keys: Keys) -> bool:
    key = bearer(head.headers.get("Authorization", "").encode("utf-8", "surrogateescape"))
    return key is not None and keys.has(key)
