"""The commands' requests against a real HTTP server that plays the API server: over streams, and as the operator's."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from kubeloop import credentials, errors
from kubeloop.credentials import Credentials, IssuedToken, Token
from kubeloop.resources import CONTROLLER_REVISION, POD
from kubeloop.transport import Transport
from llmservice_api.constants import LLMSERVICE
from llmservice_cli.api import USER_AGENT, Api
from llmservice_cli.cluster import connect
from llmservice_cli.options import Scope
from llmservice_cli.streams import LARGEST_PART, StreamTransport

from tests.support.forward_proxy import forward_proxy
from tests.support.http_servers import Answer, application, loopback_tls, streams, threaded
from tests.unit.api_server import ApiServer, over_http, reply


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


TRANSPORTS = [StreamTransport, Transport]


@pytest.fixture(params=TRANSPORTS)
async def api(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    tokens = iter(["first", "second"])

    async def another() -> IssuedToken:
        return IssuedToken(next(tokens))

    token = Token(IssuedToken(next(tokens)), another)
    async with over_http(server, token, made=request.param, user_agent=USER_AGENT) as transport:
        yield Api(transport)


SELECTOR = {"fieldSelector": "metadata.name=chat"}


async def events(api: Api) -> list[Any]:
    return [e async for e in api.selected_events(LLMSERVICE, "team", SELECTOR, since="7", seconds=60, silence=5)]


async def test_a_renewal_during_a_command_may_take_longer_than_a_request(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have to confirm it in a browser. A user without a token sends none."""
    server.script.append(reply(200, {"kind": "Pod"}))

    async def confirmed() -> IssuedToken:
        await asyncio.sleep(1.2)
        return IssuedToken("renewed")

    async with application(server.answer) as address:
        found = [
            Credentials(address, "team", token) for token in (Token(IssuedToken("old"), confirmed), Token.fixed(None))
        ]

        async def load(**_: Any) -> Credentials:
            return found.pop(0)

        monkeypatch.setattr(credentials, "load", load)
        options, path = Scope(kubeconfig=None, context=None, namespace=None), POD.path("team", "p")
        async with connect(options) as connection:
            connection.credentials.token.forget()
            assert await connection.kube._transport.request("get", POD, path, timeout=1) == {"kind": "Pod"}
        async with connect(options) as connection:
            await connection.kube.get(POD, "team", "p")
    assert [headers.get("Authorization") for headers in server.headers] == ["Bearer renewed", None]


async def test_a_refused_token_is_renewed_once(api: Api, server: ApiServer) -> None:
    server.script.append(reply(401))
    server.script.append(reply(200, {"kind": "Pod"}))
    assert await api.get(POD, "team", "p") == {"kind": "Pod"}
    sent = [(headers["Authorization"], headers["User-Agent"]) for headers in server.headers]
    assert sent == [("Bearer first", "llmservice-cli"), ("Bearer second", "llmservice-cli")]


async def test_a_watch_with_a_refused_token_has_the_next_one_renewed(api: Api, server: ApiServer) -> None:
    server.script.append(reply(401))
    server.script.append(reply(200))
    with pytest.raises(errors.Unauthorized):
        await events(api)
    await api.get(POD, "team", "p")
    assert server.headers[1]["Authorization"] == "Bearer second"


async def test_what_users_stored_is_shown_as_far_as_it_can_be_read(api: Api, server: ApiServer) -> None:
    """A number that no double holds, half of a pair and a nesting without end, in one object of a list."""
    deep = b"[" * 5000 + b"]" * 5000
    server.script += [
        reply(200, b'{"metadata":{},"items":[{"data":{"n":1e400,"s":"\\ud800","d":' + deep + b'}},{"data":1}]}')
    ]
    odd, plain = await api.list_all(CONTROLLER_REVISION, "team")
    assert plain == {"data": 1}
    assert odd["data"]["n"] is None


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[1]", b"null", b"\xff", b""])
async def test_what_no_api_server_sends_is_an_error(api: Api, server: ApiServer, body: bytes) -> None:
    """A company's login page, for one."""
    server.script.append(reply(200, body + b"\n"))
    for asked in (api.get(POD, "team", "p"), events(api)):
        with pytest.raises(errors.Unreachable, match="is no API server's"):
            await asked


async def test_lists_come_in_pages(api: Api, server: ApiServer) -> None:
    server.script.append(reply(200, {"metadata": {"continue": "more"}, "items": [{"n": 1}]}))
    server.script.append(reply(200, {"metadata": {}, "items": [{"n": 2}]}))
    assert await api.list_all(CONTROLLER_REVISION, "team", label_selector="a=b c") == [{"n": 1}, {"n": 2}]
    assert server.requests[0][2]["labelSelector"] == "a=b c"


async def test_a_field_is_removed_by_a_merge_patch(api: Api, server: ApiServer) -> None:
    server.script.append(reply(200))
    change = {"spec": {"rollout": {"pinnedRevision": None}}}
    await api.merge(LLMSERVICE, "team", "chat", change)
    query = {"fieldManager": "llmservice-cli", "fieldValidation": "Strict"}
    assert server.requests == [("PATCH", LLMSERVICE.path("team", "chat"), query, change)]
    assert server.headers[0]["Content-Type"] == "application/merge-patch+json"


async def test_deleting_what_is_gone_is_no_error(api: Api, server: ApiServer) -> None:
    server.script.append(reply(404, {"kind": "Status", "reason": "NotFound"}))
    await api.delete(POD, "team", "p", uid="u", grace=0)
    method, _, _, body = server.requests[0]
    assert (method, body["preconditions"], body["gracePeriodSeconds"]) == ("DELETE", {"uid": "u"}, 0)


async def test_what_a_pod_answers_comes_as_it_is_and_a_missing_right_is_named(api: Api, server: ApiServer) -> None:
    server.script.append(reply(200, b"vllm:num_requests_running 1.0\n"))
    server.script += [
        reply(403, {"kind": "Status", "message": 'User "x" cannot get resource "pods/proxy" in API group ""'})
    ]
    assert await api.proxied(POD, "team", "p", 8000, "/metrics") == "vllm:num_requests_running 1.0\n"
    assert server.requests[0][:2] == ("GET", "/api/v1/namespaces/team/pods/p:8000/proxy/metrics")
    with pytest.raises(errors.Forbidden, match="grant it: get pods/proxy"):
        await api.proxied(POD, "team", "p", 8000, "/metrics")


async def test_an_event_may_have_megabytes(api: Api, server: ApiServer) -> None:
    event = {"type": "MODIFIED", "object": {"text": "x" * 3_000_000}}
    server.script.append(reply(200, json.dumps(event).encode() + b"\n"))
    assert await events(api) == [event]


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("to", ["/api/v1/namespaces/team/secrets", "http://127.0.0.1:9/"])
@pytest.mark.parametrize("code", [301, 302, 307])
async def test_a_redirect_is_not_followed(to: str, code: int, kind: type[Transport]) -> None:
    """A pod behind the API server's proxy would choose where the token goes. Its cookies are not sent back."""
    seen: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers.get("Cookie")))
        return web.Response(status=code, headers={"Location": to, "Set-Cookie": "a=b"})

    async with application(answer) as address:
        fixed = Credentials(address, "team", Token.fixed("secret"))
        async with kind(fixed, user_agent=USER_AGENT) as transport:
            with pytest.raises(errors.KubeError, match=f"HTTP {code}"):
                await Api(transport).get(POD, "team", "p")
            with pytest.raises(errors.KubeError, match=f"HTTP {code}"):
                [line async for line in transport.lines(POD, POD.path("team"), params={}, silence=5)]
    assert seen == [(POD.path("team", "p"), None), (POD.path("team"), None)]


# Over streams.


@asynccontextmanager
async def asked(answer: Answer) -> AsyncIterator[Api]:
    async with (
        application(answer) as address,
        StreamTransport(Credentials(f"{address}/prefix", "team", Token.fixed(None))) as transport,
    ):
        yield Api(transport)


async def test_requests_share_a_connection_until_the_server_ends_it() -> None:
    ports: list[int] = []
    is_last = False

    async def answer(request: web.Request) -> web.Response:
        ports.append(request.transport.get_extra_info("peername")[1])  # type: ignore[union-attr]
        found = web.json_response({}, status=500 if len(ports) == 1 else 200)
        if is_last:
            found.force_close()
        return found

    async with asked(answer) as api:
        with pytest.raises(errors.ServerError):
            await api.get(POD, "team", "p")
        await api.get(POD, "team", "p")
        assert ports[0] == ports[1]
        await asyncio.gather(*(api.get(POD, "team", "p") for _ in range(2)))
        assert len({*ports}) == 2, "two at a time have two"
        is_last = True
        for _ in range(3):
            await api.get(POD, "team", "p")
        assert len({*ports[-3:]}) == 3


async def test_what_is_packed_is_unpacked_in_parts_and_up_to_a_bound() -> None:
    """A page of zeros of 50 MB takes 50 kB."""

    async def answer(request: web.Request) -> web.Response:
        found = web.Response(body=bytes(50 * LARGEST_PART if "large" in request.path else 3 * LARGEST_PART))
        found.enable_compression(web.ContentCoding.gzip)
        assert "gzip" in request.headers["Accept-Encoding"]
        return found

    async with asked(answer) as api:
        page = await api.proxied(POD, "team", "p", 80, "/page", max_bytes=4 * LARGEST_PART)
        assert (len(page), {*page}) == (3 * LARGEST_PART, {"\0"})
        with pytest.raises(errors.Unreachable, match="more than"):
            await api.proxied(POD, "team", "p", 80, "/large", max_bytes=4 * LARGEST_PART)


async def test_addresses_are_the_ones_that_are_meant() -> None:
    """A prefix of the kubeconfig's server, a query of a pod's own path, values with signs of addresses."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.json_response({"items": []})

    async with asked(answer) as api:
        await api.proxied(POD, "team", "p", 80, "/a b?c=1&d=%2F")
        await api.list_selected(POD, "team", {"labelSelector": "a in (b,c),d=e&f"})
    proxied, listed = seen
    assert proxied == "/prefix/api/v1/namespaces/team/pods/p:80/proxy/a%20b?c=1&d=%2F"
    assert listed == "/prefix/api/v1/namespaces/team/pods?labelSelector=a+in+%28b%2Cc%29%2Cd%3De%26f"


RAW = {
    "nothing": b"",
    "half of a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half of a body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
async def test_what_is_no_answer_is_one_error(raw: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)

    async with streams(serve) as port:
        address = f"http://127.0.0.1:{port}"
        async with StreamTransport(Credentials(address, "team", Token.fixed(None))) as transport:
            with pytest.raises(errors.Unreachable, match="get /api/v1/namespaces/team/pods/p"):
                await Api(transport).get(POD, "team", "p")


async def test_an_answer_of_any_length_without_a_length_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.0 200 OK\r\n\r\n{"a":')
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(b"1}")

    async with streams(serve) as port:
        address = f"http://127.0.0.1:{port}"
        async with StreamTransport(Credentials(address, "team", Token.fixed(None))) as transport:
            for _ in range(2):
                assert await Api(transport).get(POD, "team", "p") == {"a": 1}


async def test_a_connection_that_the_server_ended_unsaid_is_not_used_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with streams(serve) as port:
        address = f"http://127.0.0.1:{port}"
        async with StreamTransport(Credentials(address, "team", Token.fixed(None))) as transport:
            for _ in range(3):
                assert await Api(transport).get(POD, "team", "p") == {}
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("token", ["s3cret\nX-Other: a", "s3cret\x00", "s3crét"])
async def test_a_token_that_no_header_can_have_is_not_quoted(token: str) -> None:
    async with StreamTransport(Credentials("http://127.0.0.1:1", "team", Token.fixed(token))) as transport:
        with pytest.raises(errors.Unreachable, match="does not allow") as caught:
            await Api(transport).get(POD, "team", "p")
    assert "s3cr" not in str(caught.value)


async def test_a_server_that_is_away_or_silent_is_named() -> None:
    async with StreamTransport(Credentials("http://127.0.0.1:1", "team", Token.fixed(None))) as transport:
        with pytest.raises(errors.Unreachable, match=r"cannot connect to 127\.0\.0\.1:1"):
            await Api(transport).get(POD, "team", "p")

    async def answer(request: web.Request) -> web.StreamResponse:
        found = web.StreamResponse()
        await found.prepare(request)
        await asyncio.sleep(5)
        return found

    async with asked(answer) as api:
        with pytest.raises(errors.SilentStream, match=r"nothing came for 0 s: get .*/log"):
            [each async for each in api.log_chunks("team", "p", {}, silence=0.2)]
        with pytest.raises(errors.Unreachable, match=r"no answer within 0\.2 s"):
            await api._transport.read("get", POD, POD.path("team", "p"), timeout=0.2)


def test_a_command_that_ends_leaves_no_connection_open(tls: tuple[ssl.SSLContext, bytes]) -> None:
    """Nor does it wait for a server that does not answer TLS's goodbye."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            is_over.wait()

    context, ca = tls

    async def ask(address: str) -> None:
        async with StreamTransport(Credentials(address, "team", Token.fixed(None), ca=ca)) as transport:
            assert await Api(transport).get(POD, "team", "p") == {}

    with threaded(Handler, tls=context) as port:
        try:
            asyncio.run(ask(f"https://127.0.0.1:{port}"))
            gc.collect()  # what is open warns then, which fails the test
        finally:
            is_over.set()


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, bytes]:
    """A server's side, and the authority of its certificate."""
    context, authority = loopback_tls()
    return context, Path(authority).read_bytes()


@pytest.mark.parametrize("user", ["", "somebody@"])
async def test_tls_goes_through_a_proxys_tunnel(user: str, tls: tuple[ssl.SSLContext, bytes]) -> None:
    context, ca = tls

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"path": request.raw_path})

    with forward_proxy() as proxy:
        async with application(answer, tls=context) as address:
            port = urlsplit(address).port
            proxy.names["api.invalid"] = "127.0.0.1"
            credentials = Credentials(
                f"https://api.invalid:{port}", "team", Token.fixed(None),
                ca=ca, tls_server_name="localhost",
                proxy=proxy.url.replace("//", f"//{user}"),
            )  # fmt: skip
            async with StreamTransport(credentials) as transport:
                for _ in range(2):
                    assert await Api(transport).get(POD, "team", "p") == {"path": POD.path("team", "p")}
    assert proxy.asked == [f"CONNECT api.invalid:{port}"], "the connection is kept"
    assert ("Proxy-Authorization: Basic c29tZWJvZHk6" in proxy.headers[0]) is bool(user)


async def test_a_proxy_that_refuses_is_named_with_its_answer() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    async with streams(refuse) as port:
        credentials = Credentials("https://api.invalid", "team", Token.fixed(None), proxy=f"http://127.0.0.1:{port}")
        async with StreamTransport(credentials) as transport:
            with pytest.raises(errors.Unreachable, match=rf"127.0.0.1:{port}: .*CONNECT api.invalid:443 with 403"):
                await Api(transport).get(POD, "team", "p")
