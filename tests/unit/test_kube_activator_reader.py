"""Reading what an activator reports of a service: from an activator, and from everything else that may answer."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as some
from llmservice_operator.api.holding import HoldingReport
from llmservice_operator.api.service import Key
from llmservice_operator.kube.activator_reader import (
    LARGEST,
    LONGEST_PROBLEM,
    SILENT_SECONDS,
    ActivatorReader,
    Unreadable,
    parsed,
)

KEY = Key("team-a", "chat")
GOOD: dict[str, Any] = {"version": 1, "listening": True, "reachable": True, "problem": "", "held": 0}


async def read(body: str, status: int = 200, key: Key = KEY, uid: str = "u-1", asked: list[str] | None = None) -> Any:
    """The report from a server that answers so."""

    async def answer(request: web.Request) -> web.Response:
        if asked is not None:
            asked.append(request.raw_path)
        return web.Response(text=body, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server, ActivatorReader(port=server.port or 0) as reader:
        return await reader.read("127.0.0.1", key, uid, 20_000)


REPORTS: dict[str, tuple[dict[str, Any], HoldingReport]] = {
    "it can hold": ({}, HoldingReport(is_listening=True, is_reachable=True)),
    "it does not listen": ({"listening": False}, HoldingReport(is_reachable=True)),
    "it is not reached": ({"reachable": False}, HoldingReport(is_listening=True)),
    "a problem": ({"problem": "no key"}, HoldingReport(is_listening=True, is_reachable=True, problem="no key")),
    "no problem at all": ({"problem": None}, HoldingReport(is_listening=True, is_reachable=True)),
    "more than is known": ({"later": [1]}, HoldingReport(is_listening=True, is_reachable=True)),
    "a problem of several lines": ({"problem": "a\n\x1b b\t"}, HoldingReport(True, True, "a b")),
    "a long problem": ({"problem": "x" * 2000}, HoldingReport(True, True, "x" * LONGEST_PROBLEM)),
}


@pytest.mark.parametrize("case", REPORTS)
async def test_what_an_activator_reports(case: str) -> None:
    change, wanted = REPORTS[case]
    assert await read(json.dumps(GOOD | change)) == wanted


INVALID = {
    "nothing": "",
    "no JSON": "{",
    "no object": "[]",
    "another version": json.dumps(GOOD | {"version": 2}),
    "no version": json.dumps({"listening": True, "reachable": True}),
    "a number for a flag": json.dumps(GOOD | {"listening": 1}),
    "a word for a flag": json.dumps(GOOD | {"reachable": "true"}),
    "no flag": json.dumps({"version": 1, "listening": True}),
    "a number for the problem": json.dumps(GOOD | {"problem": 5}),
    "deep": json.dumps(GOOD | {"later": [[[[[]]]]]}),
    "many parts": json.dumps(GOOD | {"later": [0] * 99}),
    "larger than may be read": json.dumps(GOOD | {"problem": "x" * LARGEST}),
}


@pytest.mark.parametrize("case", INVALID)
async def test_other_answers_are_refused(case: str) -> None:
    with pytest.raises(Unreadable) as refused:
        await read(INVALID[case])
    assert refused.value.is_invalid
    assert len(str(refused.value)) < 160


async def test_a_service_that_the_activator_does_not_know() -> None:
    with pytest.raises(Unreadable, match="not that of an activator"):
        await read(json.dumps(GOOD), 404)


async def test_what_is_asked() -> None:
    asked: list[str] = []
    await read(json.dumps(GOOD), asked=asked)
    await read(json.dumps(GOOD), key=Key("a/b", "c?d"), uid="u&port=1", asked=asked)
    assert asked == [
        "/services/team-a/chat?uid=u-1&port=20000",
        "/services/a%2Fb/c%3Fd?uid=u%26port%3D1&port=20000",
    ], "no name leaves its place"


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
FIELDS = some.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, VALUES))


@given(some.binary(max_size=200) | FIELDS.map(lambda value: json.dumps(GOOD | value).encode()))
def test_any_bytes_give_a_bounded_report_or_a_refusal(body: bytes) -> None:
    try:
        report = parsed(body, 9091)
    except Unreadable:
        return
    stated = json.loads(body)
    assert (report.is_listening, report.is_reachable) == (stated["listening"], stated["reachable"])
    assert len(report.problem) <= LONGEST_PROBLEM
    assert not {unicodedata.category(character) for character in report.problem} & {"Cc", "Cs"}, "one line of text"


class Counted(ActivatorReader):
    """Some activators do not answer."""

    def __init__(self) -> None:
        self.now, self.asked, self.silent = 0.0, list[str](), {"10.0.0.1"}
        super().__init__(clock=lambda: self.now)

    async def get(self, address: str, path: str) -> bytes:
        self.asked.append(address)
        if address in self.silent:
            raise Unreadable("it does not answer")
        return json.dumps(GOOD).encode()


async def test_one_that_is_silent_is_not_asked_about_another_service_for_a_while() -> None:
    reader = Counted()
    for service in ("chat", "code"):
        with pytest.raises(Unreadable, match="it does not answer"):
            await reader.read("10.0.0.1", Key("team-a", service), "u-1", 20_000)
    assert (await reader.read("10.0.0.2", KEY, "u-1", 20_000)).is_listening
    assert reader.asked == ["10.0.0.1", "10.0.0.2"]
    reader.silent.clear()
    reader.now += SILENT_SECONDS
    assert (await reader.read("10.0.0.1", KEY, "u-1", 20_000)).is_listening


async def test_one_whose_answer_is_no_report_is_asked_about_others() -> None:
    reader, page = Counted(), Unreadable("it is not an activator's", is_invalid=True)

    async def refuse(address: str, path: str) -> bytes:
        raise page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "get", refuse)
        with pytest.raises(Unreadable, match="not an activator's"):
            await reader.read("10.0.0.2", KEY, "u-1", 20_000)
    assert (await reader.read("10.0.0.2", KEY, "u-1", 20_000)).is_listening
