"""Reading how many requests a pod has in flight: from a supervisor, and from everything else that may answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_operator.api.holding import LastUse
from llmservice_operator.kube.pod_port import LIMIT
from llmservice_operator.kube.requests_reader import (
    MOST_BEGUN,
    MOST_REQUESTS,
    Requests,
    RequestsReader,
    Unreadable,
    parsed,
)
from llmservice_runtime import shared_counters
from llmservice_runtime.contract import LAST_REQUEST, METRICS_PATH, REQUESTS_BEGUN, REQUESTS_IN_FLIGHT, Phase, State
from llmservice_runtime.supervisor import state_server
from llmservice_runtime.supervisor.metrics import CONTENT_TYPE, Snapshot, exposition

from tests.support.ports import free_port

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
    ("requests", "begun"), [(0, 0), (1, 2), (37, 10**6), (123_456, 10**12), (MOST_REQUESTS, MOST_BEGUN)]
)
async def test_reads_what_a_supervisor_exposes(requests: int, begun: int) -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: answer(path, exposed(requests, begun)))
    async with server, RequestsReader(port=port) as reader:
        assert await reader.read("127.0.0.1") == Requests(requests, begun)


def test_a_pod_of_an_earlier_version_does_not_count_what_began() -> None:
    earlier = "".join(line for line in exposed(3, 9).splitlines(keepends=True) if BEGUN not in line)
    assert parsed(earlier.encode(), 8081) == Requests(3, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/realtime", "/of/an/own/image"])
@pytest.mark.parametrize("method", ["POST", "WEBSOCKET", "MINE"])
def test_the_last_use_is_read(method: str, path: str) -> None:
    found = parsed(exposed(1, 2, shared_counters.pack_use(1_795_000_000.5, method, path)).encode(), 8081)
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
    assert parsed(f"{NAME} 3\n{LAST_REQUEST}{text}\n".encode(), 8081) == Requests(3, None, last)


ANSWERS = {
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
    "a counter too large": f"{NAME} 3\n{BEGUN} {MOST_BEGUN + 1}\n",
    "a counter without a value": f"{NAME} 3\n{BEGUN}\n",
    "larger than may be read": f"{NAME} 3\n" + "#" * LIMIT,
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_other_answers_are_refused(case: str) -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: answer(path, ANSWERS[case]))
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


async def test_a_refused_connection() -> None:
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
        value = parsed(body, 8081)
    except Unreadable:
        return
    assert 0 <= value.in_flight <= MOST_REQUESTS
    assert value.begun is None or 0 <= value.begun <= MOST_BEGUN
    stated = [line for line in body.split(b"\n") if re.match(NAME.encode() + rb"[ {\t]", line)]
    assert len(stated) == 1
    assert re.fullmatch(NAME.encode() + b" 0*%d" % value.in_flight, stated[0])
