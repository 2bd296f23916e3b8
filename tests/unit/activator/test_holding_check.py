"""The check of a request, whatever a client sends: an answer or a decision, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llmservice_activator.holding import check
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.check import NeedsPod, RequestHead
from llmservice_runtime import access
from llmservice_runtime.contract import KEYLESS_PATHS
from llmservice_vllm.paths import MODEL_POSTS, STREAMING

from tests.unit.activator.test_holding_body import finished
from tests.unit.holding_world import CHAT, target

PATHS = (
    st.sampled_from([CHAT, "/v1/models", "/health", "/ping", "/metrics", "/v1/audio/transcriptions", "/"]) | st.text()
)
NAMES = ["Content-Type", "Content-Length", "Authorization", "Expect", "Upgrade", "Host"]
VALUES = st.sampled_from(
    ["application/json", "multipart/form-data", "Bearer right", "bearer", "100-continue", "websocket", "9" * 40, "²"]
) | st.text()  # fmt: skip
HEADS = st.builds(
    RequestHead,
    st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "CONNECT", "PATCH"]),
    PATHS,
    st.dictionaries(st.sampled_from(NAMES), VALUES),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["model", "stream", "x"]), inner),
    max_leaves=12,
)
BODIES = st.binary() | JSON.map(lambda value: json.dumps(value).encode())
SERVICE = target(port=1)
KEYS = access.parse_keys(b"right")


@given(HEADS)
@example(RequestHead("GET", CHAT, {"Authorization": "Bearer \udcff"}))
def test_a_head(head: RequestHead) -> None:
    for keys in (None, KEYS):
        answer = check.before_pods(head, SERVICE, keys)
        if keys is not None and head.headers.get("Authorization") not in ("Bearer right", "bearer right"):
            is_open = head.path in KEYLESS_PATHS or head.path == "/llmservice.dev/activator"
            assert is_open or authorized(head) or (answer is not None and answer.status == 401)
        later = check.without_pod(head, SERVICE)
        for each in (answer, later):
            assert each is None or is_whole(each)
        if later is None:
            assert head.method == "POST"
            assert head.path in MODEL_POSTS
            assert head.length <= SERVICE.max_bytes


def authorized(head: RequestHead) -> bool:
    """Spelled another way: any case of the scheme, spaces around the key."""
    scheme, _, key = head.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and key.strip() == "right"


@given(st.sampled_from(sorted(MODEL_POSTS)), VALUES, BODIES)
@example(CHAT, "application/json", b"[" * 100_000)
@example(CHAT, "application/json", b'{"model":' + b"9" * 5000 + b"}")
@example(CHAT, "application/json", b'{"model":"\\ud800"}')
def test_a_body(path: str, content_type: str, body: bytes) -> None:
    head = RequestHead("POST", path, {"Content-Type": content_type})
    if check.without_pod(head, SERVICE) is not None:
        return
    verdict = finished(check.with_body(head, body, SERVICE))
    if isinstance(verdict, NeedsPod):
        if head.content_type == "multipart/form-data":
            assert path.startswith("/v1/audio/")
            return
        document = json.loads(body)
        assert not document.get("model") or document["model"] in SERVICE.model_names
        assert verdict.streams == (document.get("stream") is True and path in STREAMING)
    else:
        assert is_whole(verdict)
        assert verdict.status in (400, 404, 413)


def test_json_that_would_take_long_to_parse_is_refused_and_no_field_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LONGEST_JSON", 20)
    verdict = finished(check.with_body(RequestHead("POST", CHAT, {}), b'{"model": "llama"}   ', SERVICE))
    assert isinstance(verdict, Answer)
    assert verdict.status == 413
    assert b"JSON of more than 20 bytes is not held" in verdict.body
    assert b"maxBytes" not in verdict.body


def is_whole(answer: Answer) -> bool:
    """It can be written, and as one line of an event."""
    document: Any = json.loads(answer.body) if answer.body else None
    return 200 <= answer.status < 600 and b"\n" not in answer.body and (document is None or isinstance(document, dict))
