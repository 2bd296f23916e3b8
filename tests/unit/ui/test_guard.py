"""The web page: which requests are refused before they are read, and the headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_ui import guard
from llmservice_ui.guard import HEADERS
from llmservice_ui.sessions import local

from tests.support.patience import PATIENCE
from tests.unit.ui.ui_world import OWN, world

REFUSED: dict[str, tuple[str, str, dict[str, str], int]] = {
    "another name": ("GET", "/", {"Host": "evil.example"}, 421),
    "a name that begins like ours": ("GET", "/", {"Host": "localhost.evil.example"}, 421),
    "no name": ("GET", "/", {"Host": ""}, 421),
    "a health check by another name": ("GET", "/healthz", {"Host": "10.0.0.1:8080"}, 421),
    "a form of another page": ("POST", "/sign-out", {"Origin": "http://evil.example"}, 403),
    "a form of another port": ("POST", "/sign-out", {"Origin": "http://localhost:9999"}, 403),
    "a form of a sandboxed page": ("POST", "/sign-in", {"Origin": "null"}, 403),
    "a form of another site": ("POST", "/sign-in", {"Sec-Fetch-Site": "cross-site"}, 403),
    "a form of a neighbour": ("POST", "/sizing", {**OWN, "Sec-Fetch-Site": "same-site"}, 403),
    "a form without an origin": ("POST", "/sign-in", {}, 403),
    "a program's address from another page": ("POST", "/sign-in/token", {"Origin": "http://evil.example"}, 403),
    "a change": ("DELETE", "/services/a/b", {}, 405),
    "a preflight": ("OPTIONS", "/sign-in/token", {"Origin": "http://evil.example"}, 405),
}


@pytest.mark.parametrize(("method", "path", "headers", "code"), REFUSED.values(), ids=REFUSED)
async def test_refused(method: str, path: str, headers: dict[str, str], code: int) -> None:
    async with world() as found, found.browser() as browser:
        answer = await browser.request(method, path, headers=headers)
    assert answer.status_code == code
    assert found.api.requests == [], "nothing of it was read"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080"])
async def test_names_of_a_port_forward_are_accepted(host: str) -> None:
    async with world() as found, found.browser() as browser:
        assert (await browser.get("/healthz", headers={"Host": host})).status_code == 200


async def test_every_answer_has_the_headers() -> None:
    async with world() as found, found.browser() as browser:
        paths = (
            "/",
            "/sign-in",
            "/static/page.css",
            "/static/page.js",
            "/static/%2e%2e/app.py",
            "/nowhere",
            "/healthz",
        )
        answers = [await browser.get(path) for path in paths]
        answers.append(await browser.get("/", headers={"Host": "evil.example"}))
        answers.append(await browser.post("/sign-in", content=b"x", headers=OWN))
        found.api.answers["/apis/llmservice.dev/v1alpha1/llmservices"] = {"items": 7}
        viewer = await found.signed_in()
        answers.append(await viewer.get("/"))
    assert [answer.status_code for answer in answers] == [303, 200, 200, 200, 404, 404, 200, 421, 415, 500]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, answer.url
        assert "server" not in answer.headers
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


async def test_a_body_is_bounded_while_it_is_read() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 2**26:
            sent += 2**16
            yield b"a" * 2**16

    async with world() as found, found.browser() as browser:
        form = {**OWN, "Content-Type": "application/x-www-form-urlencoded"}
        answer = await browser.post("/sign-in", content=endless(), headers=form)
        many = "&".join(f"a{number}=1" for number in range(100))
        fields = await browser.post("/sign-in", content=many, headers=form)
    assert (answer.status_code, fields.status_code) == (413, 400)


async def test_a_body_has_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)

    async def slow() -> AsyncIterator[bytes]:
        yield b"token="
        await asyncio.sleep(30)

    async with world() as found, found.browser() as browser:
        form = {**OWN, "Content-Type": "application/x-www-form-urlencoded"}
        async with asyncio.timeout(PATIENCE):
            answer = await browser.post("/sign-in", content=slow(), headers=form)
    assert (answer.status_code, answer.text) == (408, "The form did not arrive within 0.1 s.\n")


ADDRESSES = {
    "/sizing": "/sizing",
    "/?q=a%20b&page=2": "/?q=a%20b&page=2",
    "/sign-in/code?code=abc": "/",
    "/sign%2Din/code?code=abc": "/",
    "/services/../sign-in/code?code=abc": "/",
    "/services/a/%2e%2e/../sign-in": "/",
    "/services/a/..": "/",
    "/sign-out": "/",
    "/services/a/b?x=1": "/services/a/b?x=1",
    "": "/",
    "//evil.example": "/",
    "/\\evil.example": "/",
    "https://evil.example": "/",
    "/a\r\nSet-Cookie: b": "/",
    "/" + "a" * 5000: "/",
}


@pytest.mark.parametrize(("given", "expected"), ADDRESSES.items())
def test_after_signing_in_one_stays_here(given: str, expected: str) -> None:
    assert local(given) == expected


@given(st.text())
def test_no_address_leads_elsewhere(address: str) -> None:
    found = local(address)
    assert found.startswith("/")
    assert found[1:2] not in ("/", "\\")
    assert found.isascii()
    assert found.isprintable()
