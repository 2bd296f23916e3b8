"""Reading a state, numbers of requests and reports of activators: from ours, and from all else that may answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import tracemalloc
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from kubeloop.resources import Key
from llmservice_api.holding import HoldingReport, LastUse
from llmservice_operator.readers.pod_port import (
    LARGEST_REPORT,
    LIMIT,
    LONGEST_PROBLEM,
    MAX_STARTED,
    MOST_REQUESTS,
    SILENT_SECONDS,
    ActivatorReader,
    Requests,
    RequestsReader,
    StateReader,
    Unreadable,
    parsed_report,
    parsed_requests,
)
from llmservice_runtime import shared_counters
from llmservice_runtime.contract import (
    LAST_REQUEST,
    METRICS_PATH,
    REQUESTS_BEGUN,
    REQUESTS_IN_FLIGHT,
    AdapterState,
    Measured,
    Phase,
    State,
    Transfer,
)
from llmservice_runtime.supervisor import state_server
from llmservice_runtime.supervisor.metrics import CONTENT_TYPE, Snapshot, exposition

from tests.support.http_servers import serving, streams
from tests.support.ports import free_port

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STATE = State(Phase.SERVING, started=True, ready=True, measured=Measured(kv_cache_tokens=7))


def saying(head: str, body: bytes = b"") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + b"\r\n\r\n" + body)

    return handle


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins to answer and never ends; the reader must have had enough before its time is over."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b" " * 65536)
            await writer.drain()


async def trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a little again and again, so that no single wait is long."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while not reader.at_eof():
            writer.write(b" ")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read()


BOMB = gzip.compress(bytes(100_000_000))
"""100 MB in 100 KB."""
SMALL_BOMB = gzip.compress(bytes(40_000_000))
assert len(SMALL_BOMB) < LIMIT
OK = "HTTP/1.1 200 OK"
GZIP = f"{OK}\r\nContent-Encoding: gzip"
TRANSFER = {"artifact": "model", "step": "Downloading", "bytesDone": 1, "bytesTotal": 2}
WHOLE = replace(
    STATE, transfer=Transfer.from_document(TRANSFER), adapters=(AdapterState("a", True),), adapters_hash="h"
)
HUGE = WHOLE.to_json().replace('"bytesDone":1', '"bytesDone":1e400').encode()


@pytest.mark.parametrize("state", [STATE, WHOLE], ids=["small", "whole"])
async def test_reads_the_state_of_a_supervisor(state: State) -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: state_server.Reply(200, state.to_json()))
    async with server, StateReader(port=port) as reader:
        assert await reader.read("127.0.0.1") == state


def stating(**changes: Any) -> Handler:
    """A state with some invalid values."""
    return saying(OK, json.dumps(json.loads(WHOLE.to_json()) | changes).encode())


def measuring(**values: Any) -> Handler:
    return stating(measured=values)


STATE_ANSWERS: dict[str, tuple[Handler, str]] = {
    "slow": (silent, "does not answer"),
    "a byte at a time": (trickling, "does not answer"),
    "huge": (endless, "not that of a supervisor"),
    "too long": (saying(OK, b"x" * 70_000), "not that of a supervisor"),
    "not found": (saying("HTTP/1.1 404 Not Found", b"{}"), "not that of a supervisor"),
    "compressed": (saying(GZIP, BOMB), "not that of a supervisor"),
    "compressed in name": (saying(GZIP, b"x"), "is no state"),
    "no JSON": (saying(OK, b"hello"), "is no state"),
    "deep": (saying(OK, b"[" * 60_000), "is no state"),
    "another version": (saying(OK, b'{"version":2}'), "another version"),
    "no number": (measuring(kvCacheTokens="many"), "is no state"),
    "no integer": (measuring(kvCacheTokens=1.5), "is no state"),
    "a boolean": (measuring(kvCacheTokens=True), "is no state"),
    "negative": (measuring(maxConcurrency=-1), "is no state"),
    "NaN": (measuring(startSeconds=float("nan")), "is no state"),
    "a long text": (measuring(vllmVersion="1" * 2000), "is no state"),
    "no text": (measuring(vllmVersion=32), "is no state"),
    "bytes that are no number": (stating(transfer={**TRANSFER, "bytesTotal": "2"}), "is no state"),
    "many adapters": (stating(adapters=[{"name": "a", "loaded": True}] * 65), "is no state"),
    "text for seconds": (stating(usualStartSeconds="soon"), "usualStartSeconds is not a number"),
    "half of a surrogate pair": (stating(progress="\ud800"), "not valid Unicode"),
    "bytes that are no text": (saying(OK, b"\xff\xfe{}"), "not valid Unicode"),
    "a number that no double holds": (saying(OK, HUGE), "out of range: 1e400"),
    "headers": (saying(OK + "\r\n" + "X-A: b\r\n" * 60_000 + "X-B: c"), "cannot be reached"),
    "garbage": (saying("garbage"), "cannot be reached"),
}


@pytest.mark.parametrize("case", STATE_ANSWERS)
async def test_the_cause_why_there_is_no_state(case: str) -> None:
    handle, cause = STATE_ANSWERS[case]
    timeout = 0.2 if cause == "does not answer" else 5.0
    async with streams(handle) as port, StateReader(port=port, timeout=timeout) as reader:
        with pytest.raises(Unreadable, match=cause):
            await reader.read("127.0.0.1")


async def test_compressed_answers_are_not_decompressed() -> None:
    """A bomb that fits the limit on the wire."""
    head = f"{GZIP}\r\nContent-Length: {len(SMALL_BOMB)}"
    async with streams(saying(head, SMALL_BOMB)) as port, StateReader(port=port) as reader:
        tracemalloc.start()
        try:
            with pytest.raises(Unreadable) as refused:
                await reader.read("127.0.0.1")
            assert tracemalloc.get_traced_memory()[1] < 16 * LIMIT, "40 MB were unpacked"
        finally:
            tracemalloc.stop()
    assert refused.value.is_invalid


async def test_a_redirect_is_not_followed() -> None:
    asked = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(True)

    async with streams(elsewhere) as other:
        head = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other}/state\r\nContent-Length: 0"
        async with streams(saying(head)) as port, StateReader(port=port) as reader:
            with pytest.raises(Unreadable):
                await reader.read("127.0.0.1")
    assert asked == []


async def test_a_refused_connection_for_a_state() -> None:
    async with StateReader(port=free_port()) as reader:
        with pytest.raises(Unreadable, match="cannot be reached"):
            await reader.read("127.0.0.1")
        with pytest.raises(Unreadable):
            await reader.read("::1")


NAME, BEGUN = REQUESTS_IN_FLIGHT, REQUESTS_BEGUN


def exposed(requests: int, begun: int = 0, last: int = 0) -> str:
    """What a supervisor answers whose server has so many requests in flight, and ever had so many."""
    slots = [0] * shared_counters.SLOTS
    slots[shared_counters.LAST] = last
    slots[shared_counters.IN_FLIGHT], slots[shared_counters.BEGUN] = requests, begun
    return exposition(Snapshot(State(Phase.SERVING, started=True, ready=True), slots))


def answer(path: str, body: str, status: int = 200) -> state_server.Reply:
    return state_server.Reply(status, body, CONTENT_TYPE) if path == METRICS_PATH else state_server.Reply(404, "")


@pytest.mark.parametrize(
    ("requests", "begun"), [(0, 0), (1, 2), (37, 10**6), (123_456, 10**12), (MOST_REQUESTS, MAX_STARTED)]
)
async def test_reads_what_a_supervisor_exposes(requests: int, begun: int) -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: answer(path, exposed(requests, begun)))
    async with server, RequestsReader(port=port) as reader:
        assert await reader.read("127.0.0.1") == Requests(requests, begun)


def test_a_pod_of_an_earlier_version_does_not_count_what_began() -> None:
    earlier = "".join(line for line in exposed(3, 9).splitlines(keepends=True) if BEGUN not in line)
    assert parsed_requests(earlier.encode(), 8081) == Requests(3, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/realtime", "/of/an/own/image"])
@pytest.mark.parametrize("method", ["POST", "WEBSOCKET", "MINE"])
def test_the_last_use_is_read(method: str, path: str) -> None:
    found = parsed_requests(exposed(1, 2, shared_counters.pack_use(1_795_000_000.5, method, path)).encode(), 8081)
    words = "OTHER" if method == "MINE" else method, "" if path == "/of/an/own/image" else path
    assert found == Requests(1, 2, LastUse(1_795_000_000, *words))


LAST = {
    "of a later version": ('{method="POST",path="/v2/later"} 7', LastUse(7, "POST", "/v2/later")),
    "other labels": ('{path="/x",method="POST"} 7', None),
    "no time": ('{method="POST",path="/x"} 0', None),
    "a time that is none": ('{method="POST",path="/x"} NaN', None),
    "in ten thousand years": ('{method="POST",path="/x"} 999999999999', None),
    "a long path": (f'{{method="POST",path="/{"x" * 64}"}} 7', None),
    "escapes": ('{method="POST",path="/\x1b[2J"} 7', None),
    "a method of another script": ('{method="ΠOST",path="/x"} 7', None),
    "twice": (f'{{method="POST",path="/x"}} 7\n{LAST_REQUEST}{{method="POST",path="/x"}} 8', None),
}


@pytest.mark.parametrize("case", LAST)
def test_a_last_use_that_is_not_as_a_supervisor_writes_it_hides_no_numbers(case: str) -> None:
    text, last = LAST[case]
    assert parsed_requests(f"{NAME} 3\n{LAST_REQUEST}{text}\n".encode(), 8081) == Requests(3, None, last)


METRICS_ANSWERS = {
    "nothing": "",
    "no such metric": "other 1\n",
    "only its help": f"# HELP {NAME} 4\n# TYPE {NAME} gauge\n",
    "a longer name": f"{NAME}_total 4\n",
    "behind another name": f"other {NAME} 4\n",
    "with labels": f'{NAME}{{pod="a"}} 4\n',
    "with a time": f"{NAME} 4 1700000000\n",
    "twice": f"{NAME} 4\n{NAME} 4\n",
    "once well and once with labels": f'{NAME} 4\n{NAME}{{a="b"}} 1\n',
    "negative": f"{NAME} -1\n",
    "a fraction": f"{NAME} 1.5\n",
    "an exponent": f"{NAME} 1e3\n",
    "no number": f"{NAME} NaN\n",
    "infinite": f"{NAME} +Inf\n",
    "too large": f"{NAME} {MOST_REQUESTS + 1}\n",
    "long": f"{NAME} {'1' * 5000}\n",
    "no value": f"{NAME}\n",
    "digits of another script": f"{NAME} ٣\n",
    "two spaces": f"{NAME}  3\n",
    "a tab": f"{NAME}\t3\n",
    "a carriage return": f"{NAME} 3\r\n",
    "a counter with labels": f'{NAME} 3\n{BEGUN}{{a="b"}} 1\n',
    "a counter twice": f"{NAME} 3\n{BEGUN} 1\n{BEGUN} 1\n",
    "a fraction of a counter": f"{NAME} 3\n{BEGUN} 1.5\n",
    "a counter too large": f"{NAME} 3\n{BEGUN} {MAX_STARTED + 1}\n",
    "a counter without a value": f"{NAME} 3\n{BEGUN}\n",
    "larger than may be read": f"{NAME} 3\n" + "#" * LIMIT,
}


@pytest.mark.parametrize("case", METRICS_ANSWERS)
async def test_other_answers_for_requests_are_refused(case: str) -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: answer(path, METRICS_ANSWERS[case]))
    async with server, RequestsReader(port=port) as reader:
        with pytest.raises(Unreadable) as refused:
            await reader.read("127.0.0.1")
    assert refused.value.is_invalid
    assert len(str(refused.value)) < 120, "nothing of the answer is repeated"


async def test_an_error_of_the_server_is_refused_whatever_it_says() -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: answer(path, exposed(3), 503))
    async with server, RequestsReader(port=port) as reader:
        with pytest.raises(Unreadable, match="not that of a supervisor"):
            await reader.read("127.0.0.1")


async def test_a_refused_connection_for_requests() -> None:
    async with RequestsReader(port=free_port()) as reader:
        with pytest.raises(Unreadable, match="cannot be reached"):
            await reader.read("127.0.0.1")


LINES = some.one_of(
    some.binary(max_size=40),
    some.integers().map(lambda value: f"{NAME} {value}".encode()),
    some.floats().map(lambda value: f"{NAME} {value}".encode()),
    some.text(max_size=20).map(lambda text: f"{NAME} {text}".encode("utf-8", "replace")),
    some.sampled_from(["", "#", " ", "\t", "{}", "_total", "\x00"]).map(lambda gap: f"{NAME}{gap} 7".encode()),
    some.integers().map(lambda value: f"{BEGUN} {value}".encode()),
)


@given(some.lists(LINES, max_size=8), some.sampled_from([b"\n", b"\r\n", b"\x0b", b""]))
def test_any_bytes_give_a_bounded_number_or_a_refusal(lines: list[bytes], separator: bytes) -> None:
    """And a number only where exactly one line has the metric's name and this number."""
    body = separator.join(lines)
    try:
        value = parsed_requests(body, 8081)
    except Unreadable:
        return
    assert 0 <= value.in_flight <= MOST_REQUESTS
    assert value.started is None or 0 <= value.started <= MAX_STARTED
    stated = [line for line in body.split(b"\n") if re.match(NAME.encode() + rb"[ {\t]", line)]
    assert len(stated) == 1
    assert re.fullmatch(NAME.encode() + b" 0*%d" % value.in_flight, stated[0])


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
    async with serving(app) as runner, ActivatorReader(port=runner.addresses[0][1]) as reader:
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
    "larger than may be read": json.dumps(GOOD | {"problem": "x" * LARGEST_REPORT}),
}


@pytest.mark.parametrize("case", INVALID)
async def test_other_reports_are_refused(case: str) -> None:
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
        report = parsed_report(body, 9091)
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
