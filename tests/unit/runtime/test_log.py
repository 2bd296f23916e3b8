"""vLLM's log: passed through byte by byte, read line by line."""

from __future__ import annotations

import os
import queue
import select
from pathlib import Path

import pytest
from llmservice_runtime.contract import Measured
from llmservice_runtime.supervisor import log_reader
from llmservice_runtime.supervisor.log_reader import TAIL_LINES, LogReader, measure, messages, parse_line, progress

from tests.support.patience import PATIENCE

LOGS = Path(__file__).parents[1] / "fixtures" / "vllm_logs"


@pytest.mark.parametrize(
    ("raw", "level", "text"),
    [
        ("(APIServer pid=3) INFO 11-21 02:28:44 [api_utils.py:347] hello", "INFO", "hello"),
        ("\x1b[1;36m(EngineCore pid=3)\x1b[0;0m ERROR 11-21 02:28:44 [core.py:3] a: b", "ERROR", "a: b"),
        ("(Worker_TP0 pid=3) WARNING 11-21 02:28:44 [x.py:3] w", "WARNING", "w"),
        ("(EngineCore_DP0 pid=1) (Worker_TP0_EP0 pid=2) INFO 11-21 02:28:44 [x.py:3] w", "INFO", "w"),
        ("INFO:     Started server process [4310]", "INFO", "Started server process [4310]"),
        ("ValueError: no", "", "ValueError: no"),
    ],
)
def test_line(raw: str, level: str, text: str) -> None:
    line = parse_line(raw)
    assert (line.level, line.text) == (level, text)


def test_what_a_start_measures() -> None:
    measured = Measured()
    for raw in (LOGS / "start.log").read_text().splitlines():
        measured = measure(measured, parse_line(raw).text)
    assert measured == Measured(
        vllm_version="0.32.0",
        kv_cache_tokens=524_288,
        max_concurrency=256.0,
        max_model_len=2048,
        model_load_seconds=0.01,
        engine_init_seconds=1.06,
    )


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("Model loading took 14.24 GiB memory and 3.512345 seconds", Measured(model_memory_gib=14.24,
                                                                             model_load_seconds=3.512345)),
        ("Available KV cache memory: 55.31 GiB", Measured(kv_cache_memory_gib=55.31)),
        (
            "Initial free memory 78.20 GiB, reserved 55.31 GiB memory for KV Cache as specified by "
            "kv_cache_memory_bytes config and skipped memory profiling.",
            Measured(kv_cache_memory_gib=55.31),
        ),
        ("GPU KV cache size: 1,035,472 tokens, Maximum concurrency for 32,768 tokens per request: 31.60x",
         Measured(kv_cache_tokens=1_035_472, max_concurrency=31.6, max_model_len=32_768)),
        ("init engine (profile, create kv cache, warmup model) took 32.01 s (compilation: 12.3 s)",
         Measured(engine_init_seconds=32.01)),
        ("nothing of interest", Measured()),
    ],
)  # fmt: skip
def test_measure(text: str, measured: Measured) -> None:
    assert measure(Measured(), text) == measured


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Loading safetensors checkpoint shards:  25% Completed | 1/4", "loading the weights: 25%"),
        ("Fetching 10 files:  40%|####      | 4/10", "downloading the model: 40%"),
        ("Capturing CUDA graphs (PIECEWISE):  31%|###  | 21/67", "capturing CUDA graphs: 31%"),
        ("Started server process", None),
    ],
)
def test_progress(text: str, words: str | None) -> None:
    assert progress(text) == words


def test_each_progress_has_its_place_in_a_start() -> None:
    said = [words.format("7%") for _, words in log_reader._PROGRESS]
    assert [words for words in said if log_reader.position(words) is None] == []
    assert log_reader.position("loading the weights: 7%") == (2, 7)
    assert log_reader.position("weights loaded, preparing the engine") == (3, 0)
    assert [log_reader.position(words) for words in ("", "loading", "model: Downloading 7%")] == [None] * 3


def test_the_usage_text_is_left_out() -> None:
    found = [line.text for line in messages((LOGS / "bad_flag.log").read_text().splitlines())]
    assert found[-1] == "api_server.py: error: unrecognized arguments: --no-such-flag"
    assert not any("--headless" in text for text in found)


def test_everything_is_copied_and_the_tail_kept() -> None:
    source, writer = os.pipe()
    reader, target = os.pipe()
    seen: list[str] = []
    log = LogReader(source, target, seen.append)
    data = b"".join(b"line %d\n" % number for number in range(TAIL_LINES + 5)) + b"10%\r20%\rno end"
    os.set_blocking(reader, False)
    copied = b""
    rest = data
    while rest:
        rest = rest[os.write(writer, rest[:512]) :]
        copied += _available(reader)
    os.close(writer)
    log.join(PATIENCE)
    copied += _available(reader)
    os.close(reader)
    os.close(target)
    assert copied == data
    assert seen[-3:] == ["10%", "20%", "no end"]
    assert len(log.tail) == TAIL_LINES
    assert seen[:2] == ["line 0", "line 1"]


def test_a_line_of_anothers_does_not_land_in_the_middle_of_one() -> None:
    """The supervisor says its own on the same pipe, and Python prints a line's text and its end in two writes."""
    source, writer = os.pipe()
    reader, target = os.pipe()
    read: queue.Queue[str] = queue.Queue()
    log = LogReader(source, target, read.put)
    os.write(writer, b"10%\rhalf of")
    assert read.get(timeout=PATIENCE) == "10%"
    os.write(target, b"ours\n")
    os.write(writer, b" a line\n" + b"x" * select.PIPE_BUF + b"y\nno end")
    os.close(writer)
    log.join(PATIENCE)
    os.close(target)
    with os.fdopen(reader, "rb") as copied:
        assert copied.read() == b"ours\n10%\rhalf of a line\n" + b"x" * select.PIPE_BUF + b"y\nno end"


def _available(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return b""
