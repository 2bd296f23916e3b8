"""Documents between operator, supervisor and fetch container: their bytes, which older releases read and wrote."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime import adapter_list
from llmservice_runtime.adapter_list import Adapter
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import (
    GPU,
    AdapterState,
    CacheRoom,
    DrainReport,
    Failure,
    FailureReason,
    Measured,
    Phase,
    State,
    Transfer,
    TransferStep,
)
from llmservice_runtime.fetch_protocol import Request, ended_line, failure_line
from llmservice_runtime.inspection.inspected import Inspection
from llmservice_runtime.supervisor.processes import Ended

CARD = GPU("NVIDIA H100\x1b", 79.6471)
FAILURE = Failure(
    FailureReason.GPU_OUT_OF_MEMORY, "It is \x07full: é.", "Take less.", ("one\udcff", "two"), Phase.LOADING, 1, 9, CARD
)
BARE = Failure(FailureReason.ENGINE_DIED, "m", "r")
TRANSFER = Transfer("model", TransferStep.DOWNLOADING, 10, 1000, 5.4)
MEASURED = Measured("0.32.0", 1000, 2.5, 4096, 10.5, 14.2, 30.1, 20.0, 60.0, "Unused", "it is full")
STATE = State(
    Phase.FETCHING,
    started=True,
    ready=True,
    progress="fetching é",
    phase_seconds=3.14159,
    start_budget_seconds=600,
    usual_start_seconds=60.5,
    slow=True,
    hung=True,
    unprobed=True,
    model_names=("x", "é"),
    measured=MEASURED,
    transfer=TRANSFER,
    cache=CacheRoom(1, 2, 3),
    adapters=(AdapterState("a", loaded=False, message="no"), AdapterState("b", loaded=True)),
    adapters_hash="h",
    failure=FAILURE,
)
WRITTEN: dict[str, str | bytes] = {
    "a whole state": STATE.to_json(),
    "a first state": State(Phase.PREFLIGHT).to_json(),
    "adapters without a list": State(Phase.SERVING, adapters=(AdapterState("a", True),), slow=True).to_json(),
    "a list without adapters": State(
        Phase.SERVING, adapters_hash="h", start_budget_seconds=1.5, measured=Measured(max_concurrency=3)
    ).to_json(),
    "a failure": FAILURE.to_json(),
    "a bare failure": BARE.to_json(),
    "a shortened failure": FAILURE.to_json(205),
    "a drain": DrainReport(3).to_json(),
    "a transfer": TRANSFER.to_json(),
    "a listing": Transfer("é", TransferStep.LISTING).to_json(),
    "an inspection": Inspection("main", {"model_type": "qwen2"}, {"dtype": "bfloat16"}).to_json(),
    "an inspected folder": Inspection(config={"a": [[1, 2]]}).to_json(),
    "a failed inspection": Inspection("main", failure=FAILURE).to_json(),
    "a request": Request(("model=hf://o/m", "a=hf://o/é"), "fp8", "yarn:4", ("--model", "m")).to_json(),
    "a small request": Request(("model=hf://o/m",)).to_json(),
    "how a fetch ended": ended_line(Ended(None, 9)),
    "how a fetch succeeded": ended_line(Ended(0, None)),
    "a failed fetch": failure_line(FAILURE),
    "adapters": adapter_list.to_json([Adapter("a", "hf://o/a"), Adapter("é", "hf://o/b", "/x")]),
}
RECORDED: dict[str, str] = json.loads((Path(__file__).parents[1] / "fixtures" / "documents.json").read_text())
"""Written by a release before."""


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_earlier_releases_read(name: str) -> None:
    written = WRITTEN[name]
    assert (written if isinstance(written, str) else written.decode()) == RECORDED[name]


def changed(name: str, *path: str | int, to: Any) -> str:
    """A recorded document with another value at a place."""
    document = json.loads(RECORDED[name])
    place = functools.reduce(lambda part, key: part[key], path[:-1], document)
    place[path[-1]] = to
    return json.dumps(document)


STATES = functools.partial(changed, "a whole state")
FAILURES = functools.partial(changed, "a failure")
REQUESTS = functools.partial(changed, "a request")
ADAPTERS = functools.partial(changed, "adapters")
MOST = 2**53
TAKEN: dict[str, tuple[str, Callable[[str], Any], Callable[[Any], Any], Any]] = {
    "prose is cut": (STATES("progress", to="x" * 1025), State.from_json, lambda s: s.progress, "x" * 1024),
    "a line is cut": (FAILURES("evidence", 0, to="x" * 4097), Failure.from_json, lambda f: f.evidence[0], "x" * 4096),
    "128 names": (STATES("modelNames", to=["x"] * 128), State.from_json, lambda s: len(s.model_names), 128),
    "a large number": (
        STATES("measured", "maxModelLen", to=MOST),
        State.read,
        lambda s: s.measured.max_model_len,
        MOST,
    ),
    "a negative code": (FAILURES("exitCode", to=-(2**31)), Failure.from_json, lambda f: f.exit_code, -(2**31)),
    "a card without a name": (FAILURES("gpu", "name", to=None), Failure.from_json, lambda f: f.gpu, None),
    "a card too large": (FAILURES("gpu", "memoryGiB", to=100_001), Failure.from_json, lambda f: f.gpu, None),
    "a card with a long name": (FAILURES("gpu", "name", to="x" * 129), Failure.from_json, lambda f: f.gpu, None),
    "a failure with a long list": (
        STATES("failure", "evidence", to=["x"] * 257),
        State.read,
        lambda s: s.failure,
        None,
    ),
    "no adapters": (STATES("adapters", to=None), State.read, lambda s: s.adapters, ()),
    "no weights": (REQUESTS("weights", to=None), Request.from_json, lambda r: r.weights, "auto"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken_at_a_bound(case: str) -> None:
    text, read, of, expected = TAKEN[case]
    assert of(read(text)) == expected


REFUSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "129 names": (STATES("modelNames", to=["x"] * 129), State.read),
    "a long name": (STATES("modelNames", to=["x" * 1025]), State.read),
    "65 adapters": (STATES("adapters", to=[{"name": "a", "loaded": True}] * 65), State.read),
    "too large a number": (STATES("measured", "maxModelLen", to=MOST + 1), State.read),
    "a negative number": (STATES("measured", "maxModelLen", to=-1), State.read),
    "negative seconds": (STATES("usualStartSeconds", to=-1), State.read),
    "nothing measured": (STATES("measured", to=None), State.read),
    "no seconds": (STATES("phaseSeconds", to=None), State.read),
    "a part of a cache": (STATES("cache", "freedBytes", to=None), State.read),
    "no requests cut": (changed("a drain", "drain", "cut", to=None), DrainReport.from_json),
    "no message": (FAILURES("message", to=None), Failure.from_json),
    "257 lines": (FAILURES("evidence", to=["x"] * 257), Failure.from_json),
    "a signal of 256": (FAILURES("signal", to=256), Failure.from_json),
    "too small an exit code": (FAILURES("exitCode", to=-(2**31) - 1), Failure.from_json),
    "65 sources": (REQUESTS("fetch", to=["x"] * 65), Request.from_json),
    "no source": (REQUESTS("fetch", to=[]), Request.from_json),
    "a long source": (REQUESTS("fetch", to=["x" * (2**16 + 1)]), Request.from_json),
    "2,049 flags": (REQUESTS("args", to=["x"] * 2049), Request.from_json),
    "a long adapter": (ADAPTERS(0, "name", to="x" * 254), adapter_list.from_json),
    "a long address": (ADAPTERS(0, "uri", to="x" * 4097), adapter_list.from_json),
    "an adapter twice": (ADAPTERS(1, "name", to="a"), adapter_list.from_json),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_beyond_a_bound(case: str) -> None:
    text, read = REFUSED[case]
    try:
        assert read(text) is None
    except Refused:
        assert read not in (Failure.from_json, DrainReport.from_json)
