"""Configurations are read in a process that is stopped where one takes too long; the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_operator.service.config_reader import MAX_WAITING, ConfigReader, ReaderUnavailable
from llmservice_planner.model import config_json, reading
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.model.reading import ReadingStopped, Stopped

from tests.support.patience import PATIENCE
from tests.unit.decide_world import QWEN_7B

KEY = Key("team-a", "x")
USUAL = json.dumps(QWEN_7B)
_PATTERNS = {"quant_method": "compressed-tensors", "ignore": [f"re:.*(a|b|.)*{n}!" for n in range(14)]}
COSTLY = json.dumps(QWEN_7B | {"num_hidden_layers": 1024, "quantization_config": _PATTERNS})
"""It takes some tenth of a second of processor time."""


def instead(code: str) -> tuple[str, ...]:
    """The process with another `read`."""
    program = (
        "import os, sys, time\n"
        "from llmservice_planner.model import reader_process, reading\n"
        f"def read(document):\n    {code}\n"
        "reader_process.read = read\n"
        "sys.exit(reader_process.main())"
    )
    return (sys.executable, "-B", "-c", program)


@asynccontextmanager
async def a_reader(code: str | None = None, **limits: Any) -> AsyncIterator[tuple[ConfigReader, list[str]]]:
    """A reader that waits as long as it takes, and how its readings ended."""
    results: list[str] = []
    command = {} if code is None else {"command": instead(code)}
    reader = ConfigReader(observe=results.append, **{"wait_seconds": 60.0, **command, **limits})
    try:
        yield reader, results
    finally:
        await reader.close()


async def answer_of(reader: ConfigReader, key: Key, document: str) -> bytes:
    """The answer, of a read that is repeated whenever the reader wakes the key."""
    while True:
        woken, others = asyncio.Event(), reader.wake

        def wake(which: Key, woken: asyncio.Event = woken, others: Callable[[Key], None] = others) -> None:
            others(which)
            if which == key:
                woken.set()

        reader.wake = wake
        answer = await reader.read(key, document)
        if answer is not None:
            return answer
        await woken.wait()


def why_stopped(answer: bytes | None) -> Stopped:
    assert answer is not None
    found = reading.architecture(answer)
    assert isinstance(found, ReadingStopped)
    return found.why


async def test_what_takes_too_long_is_stopped_and_the_next_is_read() -> None:
    async with a_reader(seconds=0.1) as (reader, results):
        assert why_stopped(await reader.read(KEY, COSTLY)) is Stopped.CPU
        answer = await reader.read(KEY, USUAL)
        assert answer is not None
        assert reading.architecture(answer) == config_json.read(QWEN_7B)
        assert why_stopped(await reader.read(KEY, COSTLY)) is Stopped.CPU
    assert results == ["cpu", "read"], "it is not tried again"


STOPPED: dict[str, tuple[str, dict[str, Any], Stopped]] = {
    "it computes for ever": ("while True: pass", {"seconds": 0.05}, Stopped.CPU),
    "it does nothing": ("time.sleep(600)", {"wall": 0.5}, Stopped.TIME),
    "it takes memory": ("return bytes(2**30)", {}, Stopped.MEMORY),
    "it ends": ("os._exit(0)", {}, Stopped.DIED),
    "it answers something else": ("return b'no answer'", {}, Stopped.DIED),
    "it answers too much": ("return b'x' * 2**20", {}, Stopped.DIED),
}


@pytest.mark.parametrize(("code", "limits", "why"), STOPPED.values(), ids=STOPPED)
async def test_whatever_it_does_the_answer_says_why(code: str, limits: dict[str, Any], why: Stopped) -> None:
    async with a_reader(code, **limits) as (reader, results):
        assert why_stopped(await reader.read(KEY, USUAL)) is why
    assert results == [why]


async def test_an_ended_process_is_no_fault_of_the_next_configuration(tmp_path: Path) -> None:
    mark = tmp_path / "was here"
    code = f"p = {str(mark)!r}; " + (
        "return reading.read(document) if os.path.exists(p) else (os.mkdir(p), os._exit(0))"
    )
    async with a_reader(code) as (reader, results):
        answer = await reader.read(KEY, USUAL)
    assert answer is not None
    assert isinstance(reading.architecture(answer), Architecture)
    assert results == ["read"]


async def test_the_event_loop_goes_on_meanwhile() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async with a_reader("while True: pass", seconds=0.3) as (reader, _):
        counting = asyncio.create_task(turn())
        await reader.read(KEY, USUAL)
        counting.cancel()
    assert turns > 20


async def test_a_reconcile_waits_a_moment_only_and_is_woken() -> None:
    woken: asyncio.Queue[Key] = asyncio.Queue()
    async with a_reader("time.sleep(1); return reading.read(document)") as (reader, _):
        reader.wake = woken.put_nowait
        reader._patience = 0.01
        assert await reader.read(KEY, USUAL) is None
        assert await woken.get() == KEY
        assert await reader.read(KEY, USUAL) is not None


async def test_the_same_is_read_once_for_all_who_ask() -> None:
    async with a_reader() as (reader, results):
        answers = await asyncio.gather(*(answer_of(reader, Key(f"team-{n % 3}", f"x{n}"), USUAL) for n in range(10)))
    assert len(set(answers)) == 1
    assert results == ["read"]


@pytest.mark.parametrize("wanted", [100, 9], ids=["one of its own", "the last one of the other's"])
async def test_namespaces_take_turns(wanted: int) -> None:
    order: list[str] = []

    async def ask(reader: ConfigReader, namespace: str, number: int) -> None:
        document = json.dumps(QWEN_7B | {"vocab_size": number + 1})
        await answer_of(reader, Key(namespace, f"x{number}"), document)
        order.append(f"{namespace}{number}")

    async with a_reader() as (reader, results):
        hostile = [ask(reader, "a", number) for number in range(10)]
        await asyncio.gather(*hostile, ask(reader, "b", wanted))
    assert order.index(f"b{wanted}") <= 3
    assert len(results) == len({*range(10), wanted}), "each once"


async def test_nobody_drives_the_answers_of_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmservice_operator.service.config_reader.MAX_CACHED", 5)
    async with a_reader() as (reader, results):
        await answer_of(reader, KEY, USUAL)
        for number in range(10):
            await answer_of(reader, Key("b", "x"), json.dumps(QWEN_7B | {"vocab_size": number + 1}))
        assert await reader.read(KEY, USUAL) is not None
    assert len(results) == 11
    assert len(reader._known) == 5


async def test_few_reconciles_wait_for_configurations_that_take_long() -> None:
    """Each of them is a worker, and there are eight for all services."""

    async def waiting_reads(reader: ConfigReader, *namespaces: str) -> int:
        """How many of them wait."""
        documents = (json.dumps(QWEN_7B | {"vocab_size": next(numbers)}) for _ in namespaces)
        made = [
            asyncio.create_task(reader.read(Key(namespace, "x"), document))
            for namespace, document in zip(namespaces, documents, strict=True)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        waiting = [task for task in made if not task.done()]
        assert all(task.result() is None for task in made if task.done())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return len(waiting)

    numbers = count(1)
    async with a_reader("time.sleep(600)") as (reader, _):
        assert await waiting_reads(reader, *["a"] * 100) == 1
        assert await waiting_reads(reader, *(f"ns-{number}" for number in range(100))) == MAX_WAITING
        assert await waiting_reads(reader, "a") == 1, "none that ended is counted"


async def test_whatever_goes_wrong_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_reader() as (reader, results):
        answer, tries = reader._answer, 0

        async def broken(document: str) -> bytes:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise KeyError("a defect")
            return await answer(document)

        monkeypatch.setattr(reader, "_answer", broken)
        woken: asyncio.Queue[Key] = asyncio.Queue()
        reader.wake = woken.put_nowait
        other = Key(KEY.namespace, "other")
        reads = asyncio.gather(reader.read(KEY, USUAL), reader.read(other, USUAL), return_exceptions=True)
        first, second = await asyncio.wait_for(reads, PATIENCE)
        assert isinstance(first, ReaderUnavailable)
        assert second is None
        assert await asyncio.wait_for(woken.get(), PATIENCE) == other, "it waits for nothing else"
        with pytest.raises(ReaderUnavailable):  # so that it is tried again after a while, and not for ever at once
            await reader.read(other, USUAL)
        assert await reader.read(other, USUAL) is not None
        assert (results, reader._failed) == (["read"], {})


async def test_a_process_that_does_not_start_says_nothing_about_the_configuration() -> None:
    async with a_reader(command=("/there/is/no/such/program",)) as (reader, results):
        for _ in range(2):
            with pytest.raises(ReaderUnavailable, match="did not start"):
                await reader.read(KEY, USUAL)
    assert results == []


def environment(process: int) -> set[str]:
    return {entry.partition("=")[0] for entry in Path(f"/proc/{process}/environ").read_text().split("\0")}


async def test_the_process_is_started_for_the_first_configuration_and_ends_with_the_operator() -> None:
    async with a_reader() as (reader, _):
        assert reader._process is None
        await reader.read(KEY, USUAL)
        process = reader._process
        assert process is not None
        assert process.stdin is not None
        assert environment(process.pid) <= {"", "PYTHONPATH", "LANG"}
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0


async def test_a_closed_reader_leaves_no_process() -> None:
    async with a_reader() as (reader, _):
        await reader.read(KEY, USUAL)
        process = reader._process
    assert process is not None
    assert process.returncode is not None


FORGED: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("a layer that is not there", lambda made: made["order"].append([99, 1])),
    ("too many layers", lambda made: made["order"].append([0, 10**6])),
    ("a number without end", lambda made: made.update(vocab_size=10**30)),
    ("a text for a number", lambda made: made.update(vocab_size="__import__('os')")),
    ("another field", lambda made: made.update(layers=[{"attention": {"kind": "quantum"}}])),
    ("no layers", lambda made: made.update(order=None)),
    ("more parameters than there are", lambda made: made.update(vocab_size=2**47)),
]


@pytest.mark.parametrize("forge", [row[1] for row in FORGED], ids=[row[0] for row in FORGED])
def test_an_answer_is_checked_like_anything_that_others_say(forge: Callable[[dict[str, Any]], object]) -> None:
    made = reading._written(config_json.read(QWEN_7B))
    forge(made)
    with pytest.raises(ValueError):
        reading.architecture(reading._packed({"architecture": made}))


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="larger"):
        reading.architecture(reading._packed({"invalid": ["k", "x" * 2**21]}))
