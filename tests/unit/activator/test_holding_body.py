"""Members of a body, found without building values: what a parser finds, in steps that are each a sliver of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_activator.holding import body as scanner
from llmservice_activator.holding import check
from llmservice_activator.holding.body import NotAnObject, TooMany, members
from llmservice_activator.holding.check import RequestHead

from tests.unit.holding_world import CHAT, target

T = TypeVar("T")
NAMES = ("model", "stream")


def finished(steps: Generator[None, None, T]) -> T:
    """The result of a generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


KEYS = st.sampled_from(["model", "stream", "x", 'mo"del', "a\\", "", "é", "{", "]"]) | st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.lists(st.tuples(KEYS, VALUES), max_size=6)
SPACE = st.text(alphabet=" \t\r\n", max_size=3)


def as_parsed(text: bytes) -> object:
    """What the scanner says of a value, as a parser would: objects and arrays by their first byte."""
    return text if text in (b"{", b"[") else json.loads(text)


def flat(value: object) -> object:
    return b"{" if isinstance(value, dict) else b"[" if isinstance(value, list) else value


@given(MEMBERS, SPACE, st.booleans(), st.booleans())
def test_what_is_found_is_what_a_parser_finds(pairs: Any, space: str, is_ascii: bool, has_bom: bool) -> None:
    """Also of a name that occurs twice, of names with escapes, and with any space between."""
    parts = [f"{json.dumps(k, ensure_ascii=is_ascii)}{space}:{space}{json.dumps(v)}" for k, v in pairs]
    text = f"{space}{{{space}{f'{space},{space}'.join(parts)}{space}}}{space}".encode("utf-8", "surrogatepass")
    body = b"\xef\xbb\xbf" + text if has_bom else text
    expected = {name: flat(value) for name, value in json.loads(text).items() if name in NAMES}
    found = {name: as_parsed(value) for name, value in finished(members(body, NAMES)).items()}
    # Of a scalar the scanner keeps 64 bytes, which is more than any number here.
    assert found == expected


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ab1 ', max_size=60).map(str.encode))
def test_any_bytes_are_an_answer(body: bytes) -> None:
    try:
        found = finished(members(body, NAMES))
    except NotAnObject:
        assert not is_an_object(body), "what is refused is refused by a parser too"
        return
    assert set(found) <= set(NAMES)


def is_an_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


MIB = 2**20
# The review's bodies, and what is worst for a scanner.
BODIES = {
    "floats": b'{"x":[' + b",".join([b"1.7976931348623157e-308"] * 300_000) + b"]}",
    "keys": b"{" + b",".join(b'"%d":1' % number for number in range(30_000)) + b"}",
    "digits": b'{"x":[' + b",".join([b"7" * 4300] * 1500) + b"]}",
    "nested": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "one string": b'{"x":"' + b"a" * (16 * MIB) + b'"}',
    "backslashes": b'{"x":"' + b"\\\\" * (4 * MIB) + b'"}',
    "quotes": b'{"x":"' + b'\\"' * 60_000 + b'"}',
    "space": b"{" + b" " * (16 * MIB) + b"}",
    "a long number": b'{"model":' + b"1" * (16 * MIB) + b"}",
}


@pytest.mark.parametrize("kind", BODIES)
def test_each_step_is_a_sliver_of_the_work(kind: str) -> None:
    """A ratio, so that it holds on any machine: in CPU seconds of this thread, the longest of three runs' shortest."""
    longest, whole = [], []
    for _ in range(3):
        steps, began, parts = members(BODIES[kind], NAMES), time.thread_time(), []
        while True:
            step = time.thread_time()
            try:
                next(steps)
            except (StopIteration, NotAnObject, TooMany):
                break
            finally:
                parts.append(time.thread_time() - step)
        longest.append(max(parts))
        whole.append(time.thread_time() - began)
    assert min(longest) <= max(min(whole) / 20, 0.002), (min(longest), min(whole))


def test_more_tokens_than_are_looked_through_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "MOST_TOKENS", 10)
    monkeypatch.setattr(check, "MAX_PARSED_AT_ONCE", 4)
    verdict = finished(check.with_body(RequestHead("POST", CHAT, {}), b'{"x":[[[],[]],[[],[]]]}', target(port=1)))
    assert "JSON of more than 10 values" in str(verdict)


async def test_others_go_first_while_a_long_body_is_looked_through() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await check.run_in_slices(
        check.with_body(RequestHead("POST", CHAT, {}), BODIES["keys"], target(port=1)), asyncio.Lock()
    )
    beside.cancel()
    assert turns > 5


async def test_bodies_of_many_namespaces_leave_others_their_turns() -> None:
    """A call of KEDA takes some ten turns of the loop: one slice lies between two of them, and not one of each body."""
    longest, turn = 0.0, asyncio.Lock()

    async def others() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    beside = asyncio.create_task(others())
    checked = [
        check.with_body(RequestHead("POST", CHAT, {}), BODIES["keys"][:100_000], target(port=1)) for _ in range(8)
    ]
    await asyncio.gather(*(check.run_in_slices(each, turn) for each in checked))
    beside.cancel()
    assert longest < 4 * check.SLICE_SECONDS


@pytest.mark.parametrize("size", [10, 200_000], ids=["parsed", "scanned"])
@pytest.mark.parametrize(
    ("members_text", "status"),
    [
        ('"model": "nobody\'s"', 404),
        ('"model": 7', 400),
        ('"model": {}', 400),
        ('"model": ["a"]', 400),
        ('"model": null, "stream": true', 0),
        ('"stream": true', 0),
        ('"stream": "true"', 0),
    ],
)
def test_a_long_body_is_judged_as_a_short_one(members_text: str, status: int, size: int) -> None:
    body = f'{{"prompt": "{"a" * size}", {members_text}}}'.encode()
    verdict = finished(check.with_body(RequestHead("POST", CHAT, {}), body, target(port=1)))
    if isinstance(verdict, check.NeedsPod):
        assert status == 0
        assert verdict.streams is ('"stream": true' in members_text)
    else:
        assert verdict.status == status
