"""The web page: who is signed in, for how long, and where the token is."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.errors import Forbidden
from llmservice_cli.errors import CliError
from llmservice_ui import sessions
from llmservice_ui.app import problem_of
from llmservice_ui.sessions import CODE_SECONDS, MOST_CODES_OF_ONE, Viewer, ends_at, is_token

from tests.support.patience import PATIENCE
from tests.unit.ui.ui_world import FLEET, OWN, World, add, service, world


def web_token(**claims: object) -> str:
    return f"a.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c"


async def test_a_token_is_pasted_and_is_in_no_address_and_no_cookie() -> None:
    async with world() as found:
        browser = await found.signed_in()
        (cookie,) = browser.cookies.jar
        assert "t0ken" not in str(cookie.value)
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "strict"
        page = await browser.get("/")
        assert page.status_code == 200
        assert "t0ken" not in page.text
        assert "jane" in page.text
        assert found.api.tokens == {"Bearer t0ken"}, "no request carries another token, or none"


@pytest.mark.parametrize(
    ("host", "name", "is_secure"),
    [
        ("localhost:1", "llmservice-ui-1", False),
        ("[::1]:2", "llmservice-ui-2", False),
        ("127.0.0.1", "llmservice-ui", False),
        ("llm.example.com", "__Host-llmservice-ui", True),
        ("llm.example.com:8443", "__Host-llmservice-ui", True),
    ],
)
async def test_only_a_port_forward_may_go_without_tls(host: str, name: str, is_secure: bool) -> None:
    async with world() as found, found.browser() as browser:
        found.app._hosts |= {"llm.example.com"}
        headers = {"Host": host, "Origin": f"https://{host}"}
        answer = await browser.post("/sign-in", data={"token": "t0ken"}, headers=headers)
        out = await browser.post("/sign-out", headers={**headers, "Cookie": answer.headers["set-cookie"].split(";")[0]})
        assert len(found.sessions) == 0
    for cookie in (answer.headers["set-cookie"], out.headers["set-cookie"]):
        assert cookie.startswith(f"{name}=")
        assert "Path=/" in cookie
        assert ("secure" in cookie.lower()) == is_secure


@pytest.mark.parametrize(
    ("token", "code", "said"),
    [
        ("wrong", 401, "does not accept this token"),
        ("", 422, "Paste a token"),
        ("a b", 422, "Paste a token"),
        ("töken", 422, "Paste a token"),
        ("a" * 40_000, 422, "Paste a token"),
    ],
)
async def test_what_is_no_token_signs_nobody_in(token: str, code: int, said: str) -> None:
    async with world() as found, found.browser() as browser:
        answer = await browser.post("/sign-in", data={"token": token}, headers=OWN)
        assert (answer.status_code, "set-cookie" in answer.headers, len(found.sessions)) == (code, False, 0)
    assert said in answer.text
    assert token == "" or f">{token}<" not in answer.text


async def code_of(found: World, token: str = "t0ken", **body: str) -> str:
    """The path that `llmservice ui` opens."""
    async with found.browser() as program:
        answer = await program.post("/sign-in/token", json={"token": token, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["path"])


async def test_a_code_signs_one_browser_in() -> None:
    async with world() as found, found.browser() as browser, found.browser() as thief:
        path = await code_of(found)
        assert "t0ken" not in path
        answer = await browser.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert (await browser.get("/")).status_code == 200
        late = await thief.get(path)
        assert late.headers["location"] == "/sign-in?said=code"
        assert (await thief.get("/")).status_code == 303
        assert (await browser.get("/")).status_code == 303, "who was first may be the thief: neither has a session"


async def test_a_used_code_ends_no_later_session() -> None:
    async with world() as found, found.browser() as browser:
        path = await code_of(found)
        await browser.get(path)
        found.now += CODE_SECONDS
        assert (await browser.get(path)).headers["location"] == "/sign-in?said=code"
        assert (await browser.get("/")).status_code == 200
        await found.sessions.sweep()
        assert not found.sessions._used


async def test_what_is_over_ends_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SWEEP_SECONDS", 0.01)
    async with world(longest_session=60.0) as found:
        await found.signed_in()
        (session,) = found.sessions._sessions.values()
        await code_of(found)
        await code_of(found)
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        await messages.put({"type": "lifespan.startup"})
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        running = asyncio.create_task(found.app({"type": "lifespan", "state": {}}, messages.get, send))
        found.now += CODE_SECONDS
        async with asyncio.timeout(PATIENCE):
            while len(found.sessions) or found.sessions._codes:  # noqa: ASYNC110 - a task without a signal for its tests
                await asyncio.sleep(0.01)
        await messages.put({"type": "lifespan.shutdown"})
        await running
    assert session.transport._session is not None
    assert session.transport._session.closed
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_codes_that_are_over_are_dropped_by_several_at_once() -> None:
    async with world() as found:
        for _ in range(3):
            await code_of(found)
        found.now += CODE_SECONDS
        await asyncio.gather(*(found.sessions.redeem("none") for _ in range(3)), found.sessions.sweep())
        assert not found.sessions._codes


@pytest.mark.parametrize("how", ["sweep", "code_for", "redeem"])
async def test_one_whose_closing_is_cut_short_is_closed_by_the_next(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as found:
        for _ in range(2):
            await code_of(found)
        over = [session for _, session in found.sessions._codes.values()]
        found.now += CODE_SECONDS
        another = await found.sessions.admit("t0ken")
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly(session: sessions.Session) -> None:
            began.set()
            await goes_on.wait()
            await session.transport.__aexit__(None, None, None)

        ways: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "sweep": found.sessions.sweep,
            "code_for": partial(found.sessions.code_for, another),
            "redeem": partial(found.sessions.redeem, "none"),
        }
        with monkeypatch.context() as patched:
            patched.setattr(sessions.Session, "close", slowly)
            ending = asyncio.create_task(ways[how]())
            await began.wait()
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        if how != "code_for":
            await another.close()
    for session in (*over, another):
        assert session.transport._session is not None
        assert session.transport._session.closed


async def test_rows_are_not_kept_for_who_looks_at_none() -> None:
    async with world() as found:
        browser = await found.signed_in()
        (session,) = found.sessions._sessions.values()
        await browser.get("/")
        found.now += sessions.KEEP_SECONDS - 1
        await found.sessions.sweep()
        assert session.fleet._kept
        found.now += 1
        await found.sessions.sweep()
        assert (dict(session.fleet._kept), dict(session._meters)) == ({}, {})
        assert (await browser.get("/")).status_code == 200


async def test_no_answer_of_the_api_server_is_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_BYTES", 10_000)
    async with world() as found:
        add(found.api, service("a"))
        browser = await found.signed_in()
        found.api.answers[FLEET] = {"items": [{"x": "a" * 20_000}]}
        answer = await browser.get("/")
        assert (answer.status_code, "more than 10000 bytes" in answer.text) == (503, True)
        found.api.answers["/apis/apps/v1/namespaces/team/controllerrevisions"] = {"items": [{"x": "a" * 20_000}]}
        assert "more than 10000 bytes" in (await browser.get("/services/team/a")).text


async def test_a_code_is_of_short_life_and_another_page_cannot_use_it() -> None:
    async with world() as found, found.browser() as browser:
        path = await code_of(found)
        from_elsewhere = await browser.get(path, headers={"Sec-Fetch-Site": "cross-site"})
        assert from_elsewhere.status_code == 403
        found.now += CODE_SECONDS
        assert (await browser.get(path)).headers["location"] == "/sign-in?said=code"


async def test_codes_of_one_viewer_do_not_drive_out_those_of_others() -> None:
    async with world() as found, found.browser() as browser:
        found.users["other"] = "joe"
        theirs = await code_of(found, "other")
        mine = [await code_of(found) for _ in range(MOST_CODES_OF_ONE + 1)]
        assert (await browser.get(mine[0])).headers["location"] == "/sign-in?said=code"
        assert (await browser.get(mine[-1])).headers["location"] == "/"
        assert (await browser.get(theirs)).headers["location"] == "/"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 7}', b'{"token": "a b"}', b"{" * 50_000])
async def test_a_program_is_told_what_is_wrong(body: bytes) -> None:
    async with world() as found, found.browser() as program:
        headers = {"Content-Type": "application/json"}
        answer = await program.post("/sign-in/token", content=body, headers=headers)
        assert (answer.status_code, len(found.sessions)) == (400, 0)
        wrong = await program.post("/sign-in/token", json={"token": "wrong"})
    assert (wrong.status_code, wrong.json()) == (401, {"message": "Unauthorized"})


async def test_signing_out_ends_the_session() -> None:
    async with world() as found:
        browser = await found.signed_in()
        kept = dict(browser.cookies)
        assert (await browser.post("/sign-out", headers=OWN)).headers["location"] == "/sign-in?said=out"
        assert len(found.sessions) == 0
        browser.cookies.update(kept)
        assert (await browser.get("/")).status_code == 303, "the cookie itself opens nothing any more"


async def test_a_session_ends_after_some_hours() -> None:
    async with world(longest_session=60.0) as found:
        browser = await found.signed_in()
        found.now += 59
        assert (await browser.get("/")).status_code == 200
        found.now += 1
        assert (await browser.get("/services/a/b?x=1")).headers[
            "location"
        ] == "/sign-in?next=%2Fservices%2Fa%2Fb%3Fx%3D1"
        assert len(found.sessions) == 0


async def test_a_session_ends_with_its_token() -> None:
    async with world() as found:
        token, over = web_token(exp=found.now + 30), web_token(exp=found.now - 1)
        found.users |= {token: "jane", over: "jane"}
        browser = await found.signed_in(token)
        found.now += 30
        assert (await browser.get("/")).status_code == 303
        late = await browser.post("/sign-in", data={"token": over}, headers=OWN)
    assert (late.status_code, "the token has expired" in late.text) == (401, True)


async def test_a_token_that_was_revoked_ends_the_session() -> None:
    async with world() as found:
        browser = await found.signed_in()
        found.api.answers[FLEET] = 401
        part = await browser.get("/?part=1")
        assert part.status_code == 401, "a script signs in again by itself"
        assert (await browser.get("/")).headers["location"] == "/sign-in"
        browser = await found.signed_in()
        assert (await browser.get("/?q=a")).headers["location"] == "/sign-in?next=%2F%3Fq%3Da&said=expired"


async def test_sessions_are_bounded_and_ones_own_end_first() -> None:
    async with world(most_sessions=4, most_sessions_of_one=2) as found:
        found.users |= {str(number): f"user-{number}" for number in range(4)}
        first = await found.signed_in("0")
        mine = [await found.signed_in() for _ in range(3)]
        assert [(await each.get("/")).status_code for each in (first, *mine)] == [200, 303, 200, 200]
        others = [await found.signed_in(str(number)) for number in (1, 2)]
        assert len(found.sessions) == 4
        assert [(await each.get("/")).status_code for each in (first, mine[2], *others)] == [303, 200, 200, 200]


TOKENS: dict[str, tuple[str, float | None]] = {
    "ends": (web_token(exp=1234.5), 1234.5),
    "does not end": (web_token(sub="me"), None),
    "opaque": ("abcdef", None),
    "ends with a word": (web_token(exp="soon"), None),
    "no JSON": ("a.bbbb.c", None),
    "no base64": ("a.*.c", None),
}


@pytest.mark.parametrize(("token", "end"), TOKENS.values(), ids=TOKENS)
def test_when_a_token_ends(token: str, end: float | None) -> None:
    assert ends_at(token) == end


@given(st.text() | st.binary().map(lambda raw: f"a.{base64.urlsafe_b64encode(raw).decode()}.c"))
def test_any_token_is_read_or_refused(token: str) -> None:
    end = ends_at(token)
    assert end is None or end >= 0
    assert is_token(token) <= (token.isascii() and " " not in token)


def test_a_missing_right_comes_with_the_command_that_grants_it() -> None:
    error = Forbidden("no", right="list llmservices.llmservice.dev")
    account = problem_of(error, Viewer("system:serviceaccount:team:bot"), {"namespace": "team"})
    assert account.code == 403
    assert "list llmservices.llmservice.dev in namespace team" in account.message
    assert account.command == (
        "kubectl create rolebinding llmservices-view -n team --clusterrole=view --serviceaccount=team:bot"
    )
    person = problem_of(error, Viewer("o'hara; rm -rf /"), {})
    assert person.command.startswith("kubectl create clusterrolebinding llmservices-view --clusterrole=view ")
    assert person.command.endswith("""'--user=o'"'"'hara; rm -rf /'""")
    assert person.asks_namespace
    assert problem_of(CliError("there is no such thing", "look"), Viewer("a"), {}).code == 404
