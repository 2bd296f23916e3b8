"""The commands' requests against a real HTTP server that plays the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubeloop import credentials, errors
from kubeloop.credentials import Credentials, Issued, Token
from kubeloop.resources import CONTROLLER_REVISION, POD
from kubeloop.transport import Transport
from llmservice_api.kinds import LLMSERVICE
from llmservice_cli.api import USER_AGENT, Api
from llmservice_cli.cluster import connect
from llmservice_cli.options import Scope
from yarl import URL

from tests.support.http_servers import application

from .api_server import ApiServer, over_http, reply


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    tokens = iter(["first", "second"])

    async def another() -> Issued:
        return Issued(next(tokens))

    async with over_http(server, Token(Issued(next(tokens)), another), user_agent=USER_AGENT) as transport:
        yield Api(transport)


SELECTOR = {"fieldSelector": "metadata.name=chat"}


async def events(api: Api) -> list[Any]:
    return [e async for e in api.selected_events(LLMSERVICE, "team", SELECTOR, since="7", seconds=60, silence=5)]


async def test_a_renewal_during_a_command_may_take_longer_than_a_request(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have to confirm it in a browser. A user without a token sends none."""
    server.script.append(reply(200, {"kind": "Pod"}))

    async def confirmed() -> Issued:
        await asyncio.sleep(1.2)
        return Issued("renewed")

    async with application(server.answer) as address:
        found = [Credentials(address, "team", token) for token in (Token(Issued("old"), confirmed), Token.fixed(None))]

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


@pytest.mark.parametrize("to", ["/api/v1/namespaces/team/secrets", "http://127.0.0.1:9/"])
@pytest.mark.parametrize("code", [301, 302, 307])
async def test_a_redirect_is_not_followed(to: str, code: int) -> None:
    """A pod behind the API server's proxy would choose where the token goes."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=code, headers={"Location": to, "Set-Cookie": "a=b"})

    async with application(answer) as address:
        fixed = Credentials(address, "team", Token.fixed("secret"))
        async with Transport(fixed, user_agent=USER_AGENT) as transport:
            with pytest.raises(errors.KubeError, match=f"HTTP {code}"):
                await Api(transport).get(POD, "team", "p")
            with pytest.raises(errors.KubeError, match=f"HTTP {code}"):
                [line async for line in transport.lines(POD, POD.path("team"), params={}, silence=5)]
            assert transport._open().cookie_jar.filter_cookies(URL(address)) == {}
    assert seen == [POD.path("team", "p"), POD.path("team")]
