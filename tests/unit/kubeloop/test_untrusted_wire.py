"""One object that JSON readers do not like keeps nobody from reading the others of a list or a watch."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from kubeloop import transport
from kubeloop.transport import MAX_DEPTH, lenient, parsed

from tests.unit.hostile import anything, texts

NEIGHBOUR = {"metadata": {"name": "neighbour"}, "data": {"template": {"spec": {"containers": [{"name": "server"}]}}}}
ODD: dict[str, tuple[str, object]] = {
    "a number that no double holds": ("1e400", None),
    "an integer of 5,000 digits": ("9" * 5000, None),
    "half of a surrogate pair": ('"a\\ud800b"', "a\ufffdb"),
    "the other half": ('"\\udfff"', "\ufffd"),
    "a whole pair beside a half": ('"\\ud83d\\ude00\\ud83d"', "\U0001f600\ufffd"),
    "an escaped backslash before a u": ('["\\\\ud800","\\ud800"]', ["\\ud800", "\ufffd"]),
    "10,000 lists": ("[" * 10_000 + "]" * 10_000, ...),
    "10,000 objects": ('{"a":' * 10_000 + "1" + "}" * 10_000, ...),
}


@pytest.mark.parametrize("case", ODD)
def test_the_others_of_a_list_are_read(case: str) -> None:
    text, expected = ODD[case]
    neighbour = json.dumps(NEIGHBOUR)
    page = f'{{"metadata":{{"resourceVersion":"7"}},"items":[{neighbour},{{"data":{{"x":{text}}}}},{neighbour}]}}'
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(page)
    found = lenient(page.encode())
    first, odd, last = found["items"]
    assert first == last == NEIGHBOUR
    assert expected is ... or odd["data"]["x"] == expected
    orjson.dumps(found)


def test_nothing_is_changed_that_can_be_read() -> None:
    deep = "[" * (MAX_DEPTH - 2) + '"\\ud83d\\ude00", -1.5e3, true' + "]" * (MAX_DEPTH - 2)
    found = lenient(f'{{"a":{deep},"b":1e400}}'.encode())
    assert found == {"a": json.loads(deep), "b": None}


async def test_what_is_not_readable_at_once_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def reading(raw: bytes) -> object:
        threads.append(threading.current_thread().name)
        return lenient(raw)

    monkeypatch.setattr(transport, "lenient", reading)
    assert await parsed(b'{"a": 1}') == {"a": 1}
    assert threads == []
    assert await parsed(b'{"a": 1e400}') == {"a": None}
    assert threads != [threading.main_thread().name] != []


def cpu_seconds(read: Callable[[bytes], object], raw: bytes) -> float:
    began = time.thread_time()
    read(raw)
    return time.thread_time() - began


@pytest.mark.parametrize("odd", ['"\\ud800"', "1e400", "[" * 5000 + "]" * 5000], ids=["surrogate", "number", "depth"])
def test_a_large_page_with_one_odd_object_costs_a_bounded_multiple(odd: str) -> None:
    """Some 4 MB, as 250 objects of a hostile namespace may be."""
    items = ",".join([json.dumps(NEIGHBOUR | {"data": {str(n): "x" for n in range(1000)}})] * 250)
    usual = cpu_seconds(orjson.loads, f'{{"items":[{items}]}}'.encode())
    assert cpu_seconds(lenient, f'{{"items":[{items},{odd}]}}'.encode()) < 100 * usual


@given(texts({"type": "ADDED", "object": NEIGHBOUR}) | anything)
def test_any_line(text: str) -> None:
    with contextlib.suppress(orjson.JSONDecodeError):
        lenient(text.encode(errors="surrogatepass"))
