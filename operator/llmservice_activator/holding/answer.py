"""Responses of the activator itself. Errors have OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmservice_activator.holding.interface import Reason, Refusal

RETRY_AFTER = {429: "5", 503: "10"}
"""Seconds. A starting pod takes longer, but an early retry is held and costs little."""

MOST_REPEATED = 200
"""Characters of a client's text, or of an error about it, in a response."""

ANY_ORIGIN = {"Access-Control-Allow-Origin": "*", "Vary": "Origin"}
"""Allows pages of every origin to read the response. For requests with an Origin header, where HoldingTarget.any_origin
is set."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, JSON document (None: no body) and headers. Every response also has `Connection: close`."""

    status: int
    reason: Reason
    document: Mapping[str, object] | None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The JSON document on one line, so that it can be the data of an SSE event."""
        return b"" if self.document is None else json.dumps(self.document, separators=(",", ":")).encode()


class Answered(Exception):
    """Raised with the response to a request that needs no pod."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


def error(status: int, reason: Reason, kind: str, message: str, param: str | None = None) -> Answer:
    """`kind` is the error's `type`. 429 and 503 get Retry-After."""
    document = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    headers = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Answer(status, reason, document, headers)


def invalid(message: str, param: str | None = None) -> Answer:
    """400, with vLLM's `type`."""
    return error(400, Reason.INVALID, "BadRequestError", message, param)


def refused(refusal: Refusal) -> Answer:
    """The response to every request of a service that refuses."""
    return error(refusal.status, Reason.REFUSED, refusal.reason, refusal.message)


def not_admitted(refusal: Refusal) -> Answer:
    """403 for an address that may not send requests, 503 for one that could not be identified."""
    reason = Reason.FORBIDDEN if refusal.status == 403 else Reason.UNIDENTIFIED
    return error(refusal.status, reason, refusal.reason, refusal.message)


def unknown_model(name: str, names: Iterable[str]) -> Answer:
    """vLLM's response for a model that it does not serve."""
    text = f"The model `{name}` does not exist. Valid aliases: {', '.join(sorted(names))}."
    return error(404, Reason.INVALID, "NotFoundError", text, "model")


def preflight(requested_headers: str | None) -> Answer:
    """Response to a CORS preflight: that of vLLM's CORS middleware by default, except ANY_ORIGIN, which every response
    has."""
    headers = {
        "Access-Control-Allow-Methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
        "Access-Control-Max-Age": "600",
    }
    if requested_headers is not None:
        headers["Access-Control-Allow-Headers"] = requested_headers
    return Answer(200, Reason.PROBED, None, headers)


def models(names: Iterable[str]) -> Answer:
    """GET /v1/models with what is known without a pod."""
    cards = [{"id": name, "object": "model", "created": 0, "owned_by": "vllm"} for name in sorted(names)]
    return Answer(200, Reason.PROBED, {"object": "list", "data": cards})


UNAUTHORIZED = error(401, Reason.UNAUTHORIZED, "invalid_api_key", "Incorrect API key provided.")
UNKNOWN_PATH = error(404, Reason.INVALID, "NotFoundError", "Not Found")
WRONG_METHOD = error(405, Reason.INVALID, "MethodNotAllowedError", "Method Not Allowed")
UNKNOWN_EXPECTATION = error(417, Reason.INVALID, "BadRequestError", "Only `Expect: 100-continue` is known.", "Expect")
UNSUPPORTED = error(
    503,
    Reason.UNSUPPORTED,
    "service_unavailable",
    "No replica is running, and a websocket or CONNECT cannot wait for one. Send a POST to start one, then try again.",
)
SLOW_BODY = error(408, Reason.SLOW_BODY, "request_timeout", "The body of the request did not arrive in time.")
POD_FAILED = error(
    502, Reason.POD_FAILED, "bad_gateway", "The replica ended the connection before it answered; it may have begun to."
)
TOO_MANY_CONNECTIONS = error(503, Reason.FULL, "service_unavailable", "The activator has too many connections.")
INTERNAL = error(500, Reason.INTERNAL, "InternalServerError", "Internal error; see the activator's log.")


def malformed(status: int, why: str) -> Answer:
    """The HTTP parser's error, with its reason."""
    return error(status, Reason.INVALID, "BadRequestError", f"The request is not valid HTTP: {why[:MOST_REPEATED]}")


def head_too_large(most: int, fields: int) -> Answer:
    """For a request line and headers that are too large together."""
    text = f"The request line and headers have more than {most} bytes, or more than {fields} headers."
    return error(431, Reason.TOO_LARGE, "request_too_large", text)


def too_large(most: int) -> Answer:
    """For a body that alone exceeds the service's limit of held bytes."""
    text = f"No replica is running, and a body of more than {most} bytes is not held (spec.scaling.holding.maxBytes)."
    return error(413, Reason.TOO_LARGE, "request_too_large", text)


def unparsed(what: str) -> Answer:
    """For a body that would take too much memory or time to check."""
    return error(413, Reason.TOO_LARGE, "request_too_large", f"No replica is running, and {what} is not held.")


def full(what: str) -> Answer:
    """429 for a limit of held requests that is reached."""
    text = f"No replica is running yet, and {what}. Try again later."
    return error(429, Reason.FULL, "rate_limit_exceeded", text)


def timed_out(seconds: int) -> Answer:
    """For a request that was held for the maximum time."""
    text = f"No replica became ready within {seconds} seconds (spec.scaling.holding.timeoutSeconds). Try again later."
    return error(503, Reason.TIMED_OUT, "service_unavailable", text)


def json_object(body: bytes) -> dict[str, object] | None:
    """The JSON object in a body; None for anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
