"""API keys: who is let in, in the middleware; the file that they are in, which changes while the server runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime import access, shared_counters
from llmservice_runtime.access import FILE_LIMIT, KEYS_LIMIT, REFRESH_SECONDS, KeyFile, bearer, parse_keys
from llmservice_runtime.contract import API_KEYS_FILE_ENV, DRAIN_FILE_ENV, POD_TOKEN_HEADER
from llmservice_runtime.middleware import DrainMiddleware

from tests.unit.runtime.test_middleware import App, ask, headers

FILES = [
    pytest.param(b"one", [b"one"], id="one key"),
    pytest.param(b"one\n", [b"one"], id="one line"),
    pytest.param(b"one\ntwo\n", [b"one", b"two"], id="two lines"),
    pytest.param(b"one\r\ntwo\r\n", [b"one", b"two"], id="lines of Windows"),
    pytest.param(b"\n \n\tone \n\n  two\n\n", [b"one", b"two"], id="blanks"),
    pytest.param(b"sk-a b\n", [b"sk-a b"], id="a blank within"),
    pytest.param("schlüssel".encode(), ["schlüssel".encode()], id="no ASCII"),
    pytest.param(b"\n".join(b"%d" % n for n in range(KEYS_LIMIT)), [b"0", b"255"], id="as many as may be"),
]
UNUSABLE = [
    pytest.param(b"", "empty", id="empty"),
    pytest.param(b" \r\n\n\t", "empty", id="blank"),
    pytest.param(b"x" * (FILE_LIMIT + 1), f"{FILE_LIMIT} bytes", id="too large"),
    pytest.param(b"\n".join(b"%d" % n for n in range(KEYS_LIMIT + 1)), f"{KEYS_LIMIT} keys", id="too many"),
]


@pytest.mark.parametrize(("text", "keys"), FILES)
def test_several_keys_one_a_line(text: bytes, keys: list[bytes]) -> None:
    found = parse_keys(text)
    assert not found.problem
    assert all(found.has(key) for key in keys)
    for wrong in (b"", b"\n", b"on", b"one\ntwo", b"ONE", b"256"):
        assert not found.has(wrong)


@pytest.mark.parametrize(("text", "words"), UNUSABLE)
def test_a_file_without_usable_keys_lets_nobody_in(text: bytes, words: str) -> None:
    found = parse_keys(text)
    assert words in found.problem
    assert not any(found.has(key) for key in (b"", b"0", text[:1]))


def test_a_key_is_shown_as_a_bearer() -> None:
    assert [bearer(value) for value in (b"Bearer k", b"bearer k", b"BEARER  k ")] == [b"k"] * 3
    assert not any(map(bearer, (b"Bearer", b"Bearer ", b"k", b"Basic k", b"", None)))


class Mounted:
    """A Secret as the kubelet mounts it: a link to a folder that is exchanged as a whole; and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self._number = folder, 0.0, 0
        self.path = str(folder / "keys")
        (folder / "keys").symlink_to("..data/keys")

    def put(self, text: bytes) -> None:
        """The Secret changes; an instant later somebody looks."""
        self._number += 1
        data = self.folder / f"..{self._number}"
        data.mkdir()
        (data / "keys").write_bytes(text)
        # As old as the one before: only the file itself is another one.
        os.utime(data / "keys", (0, 0))
        link = self.folder / "..data.new"
        link.symlink_to(data.name)
        link.rename(self.folder / "..data")
        self.now += REFRESH_SECONDS

    def keys(self) -> KeyFile:
        return KeyFile(self.path, lambda: self.now)


def test_keys_are_exchanged_while_the_server_runs(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    mounted.put(b"aaa")
    keys = mounted.keys()
    assert keys.accepts(b"Bearer aaa")
    mounted.put(b"bbb")
    assert not keys.accepts(b"Bearer aaa")
    assert keys.accepts(b"Bearer bbb")
    mounted.put(b"bbb\naaa")
    assert keys.accepts(b"Bearer aaa")
    assert keys.accepts(b"Bearer bbb")
    mounted.put(b"")
    assert not keys.accepts(b"Bearer bbb")
    assert keys.current().problem == "it is empty"


def test_a_file_that_vanished_lets_nobody_in_until_it_is_back(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    keys = mounted.keys()
    assert not keys.accepts(b"Bearer aaa")
    mounted.put(b"aaa")
    assert keys.accepts(b"Bearer aaa")
    (tmp_path / "..data").unlink()
    mounted.now += REFRESH_SECONDS
    assert not keys.accepts(b"Bearer aaa")
    mounted.put(b"aaa")
    assert keys.accepts(b"Bearer aaa")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert KeyFile(str(tmp_path)).current().problem == "it is not a file"


def test_the_file_is_looked_at_once_a_second_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = Mounted(tmp_path)
    mounted.put(b"aaa")
    keys, looks = mounted.keys(), []
    real = os.stat

    def counted(path: Any, **more: Any) -> os.stat_result:
        looks.append(path)
        return real(path, **more)

    monkeypatch.setattr(os, "stat", counted)
    for _ in range(100):
        assert keys.accepts(b"Bearer aaa")
    assert looks.count(mounted.path) == 1


# The middleware


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], DrainMiddleware]:
    """One that asks for the keys `old` and `new`."""
    (tmp_path / "keys").write_bytes(b"old\nnew\n")
    path = str(tmp_path / "board")
    shared_counters.create(path).close()
    monkeypatch.setenv(DRAIN_FILE_ENV, path)
    monkeypatch.setenv(API_KEYS_FILE_ENV, str(tmp_path / "keys"))
    return lambda: DrainMiddleware(App())


def status(middleware: DrainMiddleware, path: str, *given: tuple[bytes, bytes], **more: Any) -> int:
    return int(ask(middleware, path, headers=list(given), **{"method": "GET", **more})[0]["status"])


GUARDED = (
    *("/v1/models", "/v1/chat/completions", "/invocations", "/pooling", "/score", "/rerank", "/classify", "/tokenize"),
    *("/detokenize", "/version", "/load", "/docs", "/openapi.json", "/", "", "/nowhere", "/sleep"),
    # What only looks like a path that is open to all.
    *("//health", "/health/", "/health/x", "/healthy", "/HEALTH", "/metrics/", "/metricsx", "/./health"),
    "/v1/../health",
)
OPEN = ("/health", "/metrics", "/ping")


@pytest.mark.parametrize("path", GUARDED)
def test_every_path_asks_for_a_key(guarded: Callable[[], DrainMiddleware], path: str) -> None:
    middleware = guarded()
    assert status(middleware, path) == 401
    assert status(middleware, path, (b"authorization", b"Bearer wrong")) == 401
    allowed = 403 if path == "/sleep" else 200
    assert status(middleware, path, (b"authorization", b"Bearer old")) == allowed
    assert status(middleware, path, (b"Authorization", b"bearer new")) == allowed


@pytest.mark.parametrize("path", OPEN)
def test_health_and_metrics_do_not(guarded: Callable[[], DrainMiddleware], path: str) -> None:
    assert status(guarded(), path) == 200
    assert status(guarded(), f"/api{path}", root_path="/api") == 200


@pytest.mark.parametrize(
    ("path", "root"),
    [
        pytest.param("/apihealth", "/api", id="glued to it"),
        pytest.param("/health", "/health", id="the root path itself"),
        pytest.param("/health/v1/models", "/health", id="a root path that looks open"),
        pytest.param("/api/v1/models", "/api", id="behind it"),
    ],
)
def test_a_root_path_opens_nothing(guarded: Callable[[], DrainMiddleware], path: str, root: str) -> None:
    assert status(guarded(), path, root_path=root) == 401


def test_the_answer_is_openais(guarded: Callable[[], DrainMiddleware]) -> None:
    sent = ask(guarded(), "/v1/models", method="GET")
    assert headers(sent)[b"www-authenticate"] == b"Bearer"
    assert b"connection" not in headers(sent), "a connection that is reset would lose the answer"
    assert b'"code":401' in sent[1]["body"]


def test_what_a_browser_asks_beforehand_needs_no_key(guarded: Callable[[], DrainMiddleware]) -> None:
    origin, wanted = (b"origin", b"https://a.example"), (b"access-control-request-method", b"POST")
    middleware = guarded()
    assert status(middleware, "/v1/models", origin, wanted, method="OPTIONS") == 200
    assert status(middleware, "/v1/models", origin, method="OPTIONS") == 401
    assert status(middleware, "/v1/models", origin, wanted, method="GET") == 401


def test_the_pods_own_requests_need_none(guarded: Callable[[], DrainMiddleware], tmp_path: Path) -> None:
    token = access.make_pod_token(str(tmp_path / "board")).encode()
    shown = (POD_TOKEN_HEADER.encode(), token)
    assert status(guarded(), "/v1/completions", shown, method="POST") == 200
    assert status(guarded(), "/v1/load_lora_adapter", shown, method="POST") == 200
    assert status(guarded(), "/v1/completions", (shown[0], b"guessed"), method="POST") == 401


@pytest.mark.parametrize("path", ["/v1/realtime", "/health", "/metrics"])
def test_a_websocket_asks_for_one_too(guarded: Callable[[], DrainMiddleware], path: str) -> None:
    middleware = guarded()
    assert ask(middleware, path, kind="websocket", headers=[]) == [{"type": "websocket.close", "code": 1008}]
    able: dict[str, Any] = {"headers": [], "extensions": {"websocket.http.response": {}}}
    refused = ask(middleware, path, kind="websocket", **able)
    assert [message["type"] for message in refused] == ["websocket.http.response.start", "websocket.http.response.body"]
    assert refused[0]["status"] == 401
    let_in = ask(middleware, path, kind="websocket", headers=[(b"authorization", b"Bearer new")])
    assert let_in[0]["type"] == "websocket.accept", "the app's own answer"
