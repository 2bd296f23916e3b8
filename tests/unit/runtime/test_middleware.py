"""The middleware in vLLM's process: nothing until the server drains, and then exactly what is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime import access, shared_counters
from llmservice_runtime.contract import (
    ACTIVATOR_PATH,
    DRAIN_FILE,
    DRAIN_FILE_ENV,
    DRAINING_HEADER,
    POD_TOKEN_FILE,
    POD_TOKEN_HEADER,
)
from llmservice_runtime.middleware import DrainMiddleware
from llmservice_runtime.supervisor import drain

REMOTE = ("10.244.0.7", 40000)


@pytest.fixture
def board_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the middleware looks for it."""
    path = str(tmp_path / "board")
    monkeypatch.setenv(DRAIN_FILE_ENV, path)
    return path


@pytest.fixture
def slots(board_path: str) -> Iterator[memoryview]:
    """The supervisor's side of the board."""
    made = shared_counters.create(board_path)
    yield made.slots
    made.close()


class App:
    """Reads its request and answers in two parts; notes what the board says meanwhile."""

    def __init__(self, slots: memoryview | None = None, fails: bool = False, status: int = 200) -> None:
        self.slots, self.fails, self.calls, self.status = slots, fails, 0, status
        self.seen: list[tuple[int, int]] = []

    def note(self) -> None:
        if self.slots is not None:
            self.seen.append((self.slots[shared_counters.IN_FLIGHT], self.slots[shared_counters.AWAITING]))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        self.note()
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                self.note()
            self.note()
        if self.fails:
            raise RuntimeError("handler")
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept" if self.status == 200 else "websocket.close"})
            return
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"x", b"y")]})
        self.note()
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        self.note()
        await send({"type": "http.response.body", "body": b"b"})


def ask(
    app: Any, path: str, client: tuple[str, int] | None = REMOTE, kind: str = "http", **more: Any
) -> list[dict[str, Any]]:
    """The messages of one request."""
    sent: list[dict[str, Any]] = []
    incoming = iter(
        [
            {"type": "http.request", "body": b"1", "more_body": True},
            {"type": "http.request", "body": b"2", "more_body": False},
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(incoming)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app({"type": kind, "method": "POST", "path": path, "client": client, **more}, receive, send))
    return sent


def headers(sent: list[dict[str, Any]]) -> dict[bytes, bytes]:
    return dict(sent[0]["headers"])


def test_open_it_changes_nothing(slots: memoryview) -> None:
    app = App(slots)
    sent = ask(DrainMiddleware(app), "/v1/completions")
    assert headers(sent) == {b"x": b"y"}
    assert [message.get("body") for message in sent] == [None, b"a", b"b"]
    assert list(slots)[: shared_counters.LAST] == [shared_counters.OPEN, 1, 0, 0, 0, 0, 2, 0, 1, 1, 0]


def test_a_request_awaits_from_its_last_byte_to_the_first_of_the_answer(slots: memoryview) -> None:
    app = App(slots)
    ask(DrainMiddleware(app), "/v1/completions")
    arrived, half, whole, started, answering = app.seen
    assert (arrived, half) == ((1, 0), (1, 0))
    assert (whole, started) == ((1, 1), (1, 1))
    assert answering == (1, 0)


def test_a_handler_that_fails_is_not_counted_for_ever(slots: memoryview) -> None:
    with pytest.raises(RuntimeError, match="handler"):
        ask(DrainMiddleware(App(slots, fails=True)), "/v1/completions")
    assert (slots[shared_counters.IN_FLIGHT], slots[shared_counters.AWAITING]) == (0, 0)


@pytest.mark.parametrize("level", [shared_counters.CLOSING, shared_counters.REFUSING])
def test_answers_of_a_draining_server_close_the_connection(slots: memoryview, level: int) -> None:
    app = App(slots)
    middleware = DrainMiddleware(app)
    slots[shared_counters.LEVEL] = level
    sent = ask(middleware, "/v1/completions")
    assert headers(sent)[b"connection"] == b"close"
    assert sent[0]["status"] == (200 if level == shared_counters.CLOSING else 503)


def test_newcomers_are_refused_in_openais_shape(slots: memoryview) -> None:
    app = App(slots)
    middleware = DrainMiddleware(app)
    slots[shared_counters.LEVEL] = shared_counters.REFUSING
    sent = ask(middleware, "/v1/chat/completions")
    assert app.calls == 0
    assert headers(sent)[b"retry-after"] == b"1"
    assert headers(sent)[DRAINING_HEADER.lower().encode()] == b"true"
    assert sent[1]["body"].startswith(b'{"error":{"message":')
    assert headers(sent)[b"content-length"] == str(len(sent[1]["body"])).encode()
    assert slots[shared_counters.REFUSED] == 1


@pytest.mark.parametrize("path", ["/health", "/metrics", "/ping", "/version", "/load", ACTIVATOR_PATH])
def test_probes_and_scrapes_are_exempt(slots: memoryview, path: str) -> None:
    app = App(slots)
    middleware = DrainMiddleware(app)
    slots[shared_counters.LEVEL] = shared_counters.REFUSING
    assert ask(middleware, path)[0]["status"] == 200
    assert app.seen[0] == (0, 0)


def test_the_lifespan_passes(slots: memoryview) -> None:
    app = App(slots)
    ask(DrainMiddleware(app), "", kind="lifespan")
    assert (app.calls, app.seen[0]) == (1, (0, 0))


def test_a_websocket_is_in_flight_while_it_is_open_and_nobody_waits_for_its_answer(slots: memoryview) -> None:
    app = App(slots)
    ask(DrainMiddleware(app), "/v1/realtime", kind="websocket")
    assert app.seen[0] == (1, 0)
    assert slots[shared_counters.IN_FLIGHT] == 0


def test_a_new_websocket_is_refused_by_a_draining_server(slots: memoryview) -> None:
    app = App(slots)
    slots[shared_counters.LEVEL] = shared_counters.REFUSING
    assert ask(DrainMiddleware(app), "/v1/realtime", kind="websocket") == [{"type": "websocket.close", "code": 1013}]
    assert (app.calls, slots[shared_counters.REFUSED]) == (0, 1)


@pytest.mark.parametrize("client", [REMOTE, ("::ffff:10.244.0.7", 40000)], ids=["IPv4", "both families on one socket"])
def test_a_connection_from_before_is_served_once_and_told(
    slots: memoryview, board_path: str, client: tuple[str, int]
) -> None:
    app = App(slots)
    middleware = DrainMiddleware(app)
    drain.record_peers(board_path, frozenset({REMOTE}))
    slots[shared_counters.LEVEL] = shared_counters.REFUSING
    first, second = ask(middleware, "/v1/completions", client), ask(middleware, "/v1/completions", client)
    assert (first[0]["status"], headers(first)[b"connection"]) == (200, b"close")
    assert second[0]["status"] == 503
    assert ask(middleware, "/v1/completions", ("10.244.0.7", 40001))[0]["status"] == 503


SHOWN = {"::ffff:10.244.0.7": "10.244.0.7", "10.244.0.7": "10.244.0.7", "fd00::7": "fd00::7"}


@pytest.mark.parametrize(("seen", "shown"), SHOWN.items(), ids=SHOWN)
def test_logs_and_applications_see_the_address_that_a_client_has(seen: str, shown: str) -> None:
    scopes: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    ask(DrainMiddleware(app), "/health", (seen, 40000))
    assert scopes[0]["client"] == (shown, 40000)


def test_nobody_is_served_by_a_vllm_that_is_about_to_be_told(slots: memoryview, board_path: str) -> None:
    middleware = DrainMiddleware(App(slots))
    drain.record_peers(board_path, frozenset({REMOTE}))
    slots[shared_counters.LEVEL] = shared_counters.STOPPING
    assert ask(middleware, "/v1/completions")[0]["status"] == 503


class Draining(App):
    """The drain begins after the head of its answer."""

    def note(self) -> None:
        super().note()
        if len(self.seen) == 4 and self.slots is not None:
            self.slots[shared_counters.LEVEL] = shared_counters.CLOSING


@pytest.mark.parametrize(
    ("more", "kept_alive"),
    [
        pytest.param({}, 1, id="keep-alive"),
        pytest.param({"headers": [(b"Connection", b"close")]}, 0, id="the client ends it"),
        pytest.param({"http_version": "1.0"}, 0, id="HTTP/1.0"),
        pytest.param({"client": None}, 0, id="nobody knows who"),
    ],
)
def test_a_connection_without_close_is_counted_until_its_next_request(
    slots: memoryview, more: dict[str, Any], kept_alive: int
) -> None:
    app = Draining(slots)
    middleware = DrainMiddleware(app)
    sent = ask(middleware, "/v1/completions", **more)
    assert b"connection" not in headers(sent)
    assert slots[shared_counters.KEPT_ALIVE] == kept_alive
    assert headers(ask(middleware, "/v1/completions", **more))[b"connection"] == b"close"
    assert slots[shared_counters.KEPT_ALIVE] == 0


def test_pieces_of_answers_are_counted(slots: memoryview) -> None:
    middleware = DrainMiddleware(App(slots))
    ask(middleware, "/v1/completions")
    ask(middleware, "/metrics")
    assert slots[shared_counters.SENT] == 2


BODY = {"type": "http.request", "body": b"1", "more_body": False}
GONE = {"type": "http.disconnect"}
START = {"type": "http.response.start", "status": 200, "headers": []}
PIECE, LAST = ({"type": "http.response.body", "body": b"a", "more_body": more} for more in (True, False))
CLIENTS: dict[str, tuple[Sequence[dict[str, Any]], int]] = {
    "stays": ((BODY, START, PIECE, LAST), 0),
    "goes once the answer is whole": ((BODY, START, PIECE, LAST, GONE), 0),
    "goes while it uploads": (({**BODY, "more_body": True}, GONE), 1),
    "goes before the answer": ((BODY, GONE), 1),
    "goes and is answered all the same": ((BODY, GONE, START, LAST), 1),
    "goes in the middle of a stream": ((BODY, START, PIECE, GONE, GONE), 1),
}


@pytest.mark.parametrize("case", CLIENTS)
def test_requests_whose_client_goes_away_are_counted(case: str, slots: memoryview) -> None:
    """As Starlette does: it listens for the disconnect beside the handler."""
    messages, count = CLIENTS[case]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            if message["type"] in ("http.request", "http.disconnect"):
                assert await receive() == message
            else:
                await send(message)

    async def send(message: Any) -> None:
        pass

    incoming = (message for message in messages if message["type"] in ("http.request", "http.disconnect"))

    async def receive() -> dict[str, Any]:
        return next(incoming)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "client": REMOTE}
    asyncio.run(DrainMiddleware(app)(scope, receive, send))
    assert slots[shared_counters.ABORTED] == count
    assert slots[shared_counters.IN_FLIGHT] == 0


# Method, path, status, and whether it keeps a service from zero.
USES: list[tuple[str, str, int, bool]] = [
    ("POST", "/v1/chat/completions", 200, True),
    ("POST", "/v1/chat/completions", 400, True),
    ("POST", "/of/an/own/image", 200, True),
    ("POST", "/nowhere", 404, False),
    ("POST", "/v1/models", 405, False),
    ("PUT", "/nowhere", 405, False),
    *((method, path, 200, False) for method in ("GET", "HEAD") for path in ("/v1/models", "/", "/docs")),
    ("GET", "/favicon.ico", 404, False),
    ("OPTIONS", "/v1/chat/completions", 200, False),
]


@pytest.mark.parametrize(("method", "path", "status", "is_use"), USES)
def test_what_could_not_wake_a_service_does_not_keep_it_awake(
    method: str, path: str, status: int, is_use: bool, slots: memoryview
) -> None:
    app = App(slots, status=status)
    ask(DrainMiddleware(app), path, method=method)
    assert slots[shared_counters.BEGUN] == is_use
    assert app.seen[0][0] == 1, "in flight, so that a drain waits for it"
    assert slots[shared_counters.IN_FLIGHT] == 0


@pytest.mark.parametrize(("status", "is_use"), [(200, True), (403, False)], ids=["accepted", "closed"])
def test_a_websocket_that_was_answered_is_a_use(status: int, is_use: bool, slots: memoryview) -> None:
    ask(DrainMiddleware(App(slots, status=status)), "/v1/realtime", kind="websocket")
    assert slots[shared_counters.BEGUN] == is_use


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_what_the_pod_asks_itself_is_no_use(kind: str, slots: memoryview, board_path: str) -> None:
    """Its first request, and adapters that it tries to load again and again."""
    ours = [(POD_TOKEN_HEADER.encode(), access.make_pod_token(board_path).encode())]
    middleware = DrainMiddleware(App(slots))
    ask(middleware, "/v1/completions", kind=kind, headers=ours)
    assert (slots[shared_counters.BEGUN], slots[shared_counters.LAST]) == (0, 0)
    ask(middleware, "/v1/completions", kind=kind)
    assert slots[shared_counters.BEGUN] == 1


# Method, path, the mount point of vLLM's --root-path, and what the last use was.
LAST_USES: dict[str, tuple[str, str, str, tuple[str, str] | None]] = {
    "one of vLLM's": ("POST", "/v1/embeddings", "", ("POST", "/v1/embeddings")),
    "behind a prefix": ("POST", "/llm/v1/embeddings", "/llm", ("POST", "/v1/embeddings")),
    "one of an own image": ("PUT", "/x?secret=1", "", ("PUT", "")),
    "one that a client made up": ("POST", "/\n\x1b[2J" + "x" * 9000, "", ("POST", "")),
    "a method that a client made up": ("MINE", "/v1/embeddings", "", ("OTHER", "/v1/embeddings")),
    "no use": ("GET", "/v1/embeddings", "", None),
    "exempt": ("POST", "/ping", "", None),
}


@pytest.mark.parametrize("case", LAST_USES)
def test_the_last_use_is_named_by_what_is_known(case: str, slots: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a client sends gets into metrics."""
    method, path, root, found = LAST_USES[case]
    monkeypatch.setattr("llmservice_runtime.middleware.time.time", lambda: 1_795_000_000.7)
    ask(DrainMiddleware(App(slots)), path, method=method, root_path=root)
    named = shared_counters.unpack_use(slots[shared_counters.LAST])
    assert named == (None if found is None else (1_795_000_000, *found))
    if found:
        ask(DrainMiddleware(App(slots)), "/v1/realtime", kind="websocket")
        named = shared_counters.unpack_use(slots[shared_counters.LAST])
        assert named == (1_795_000_000, "WEBSOCKET", "/v1/realtime")


def test_requests_that_were_in_flight_are_counted_and_no_others(slots: memoryview) -> None:
    middleware = DrainMiddleware(App(slots))
    ask(middleware, "/v1/completions")
    ask(middleware, "/v1/realtime", kind="websocket")
    for path in ("/health", "/metrics", "/adapters"):
        ask(middleware, path)
    assert (slots[shared_counters.BEGUN], slots[shared_counters.IN_FLIGHT]) == (2, 0)
    slots[shared_counters.LEVEL] = shared_counters.REFUSING
    ask(middleware, "/v1/completions")
    assert slots[shared_counters.BEGUN] == 2, "a refused one did not begin"


LOAD = "/v1/load_lora_adapter"
LOOPBACK = ("127.0.0.1", 40000)
HEADER = POD_TOKEN_HEADER.encode()


@pytest.mark.parametrize(
    ("path", "client", "more", "status"),
    [
        pytest.param(LOAD, REMOTE, {}, 403, id="load"),
        pytest.param("/v1/unload_lora_adapter", REMOTE, {}, 403, id="unload"),
        pytest.param("/adapters", REMOTE, {}, 403, id="by another name"),
        pytest.param("/adapters/x", REMOTE, {}, 403, id="by another name, with a path"),
        pytest.param(LOAD, None, {}, 403, id="nobody knows who"),
        pytest.param(LOAD, LOOPBACK, {}, 403, id="a proxy in the pod that adds no header"),
        pytest.param(LOAD, ("::1", 1), {}, 403, id="the same, IPv6"),
        pytest.param(LOAD, LOOPBACK, {"headers": [(HEADER, b"guessed")]}, 403, id="another token"),
        pytest.param(LOAD, LOOPBACK, {"headers": [(HEADER, b"")]}, 403, id="an empty one"),
        pytest.param("/a" + LOAD, REMOTE, {"root_path": "/a"}, 403, id="behind a root path"),
        pytest.param("/sleep", REMOTE, {"root_path": "/"}, 403, id="behind a root path that is none"),
        pytest.param("/v1/models", REMOTE, {}, 200, id="another path"),
        pytest.param("/sleep", LOOPBACK, {}, 403, id="sleep"),
        pytest.param("/collective_rpc", REMOTE, {}, 403, id="code in the workers"),
        pytest.param("/scale_elastic_ep", REMOTE, {}, 403, id="an administrator's"),
    ],
)
def test_endpoints_that_manage_the_server(
    slots: memoryview, board_path: str, path: str, client: tuple[str, int] | None, more: dict[str, Any], status: int
) -> None:
    app = App(slots)
    access.make_pod_token(board_path)
    middleware = DrainMiddleware(app)
    assert ask(middleware, path, client, **more)[0]["status"] == status
    assert app.calls == (1 if status == 200 else 0)


@pytest.mark.parametrize("name", [HEADER, HEADER.lower()], ids=["as sent", "as uvicorn has it"])
@pytest.mark.parametrize("path", [LOAD, "/sleep"])
def test_whoever_shows_the_pods_token_may_manage_it(slots: memoryview, board_path: str, name: bytes, path: str) -> None:
    token = access.make_pod_token(board_path).encode()
    assert ask(DrainMiddleware(App(slots)), path, REMOTE, headers=[(name, token)])[0]["status"] == 200


def test_without_a_token_of_the_pod_none_is_right(slots: memoryview, board_path: str) -> None:
    assert ask(DrainMiddleware(App(slots)), "/sleep", LOOPBACK, headers=[(HEADER, b"")])[0]["status"] == 403


def test_the_token_is_the_servers_alone_and_each_start_has_its_own(board_path: str) -> None:
    first, second = access.make_pod_token(board_path), access.make_pod_token(board_path)
    assert first != second
    assert len(second) > 40
    assert access.read_pod_token(board_path) == second.encode()
    assert access.pod_token_file(board_path).stat().st_mode & 0o777 == 0o600
    assert access.pod_token_file(DRAIN_FILE) == Path(POD_TOKEN_FILE)


def test_without_a_supervisor_it_only_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DRAIN_FILE_ENV, raising=False)
    assert ask(DrainMiddleware(App()), "/v1/completions")[0]["status"] == 200


def test_a_board_that_is_named_but_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DRAIN_FILE_ENV, str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        DrainMiddleware(App())
