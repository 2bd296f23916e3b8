"""Documents of pods and Jobs are read or refused; no text raises anything else."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_runtime.bounded_json import MAX_DEPTH, Refused, parse
from llmservice_runtime.contract import (
    TERMINATION_LIMIT,
    AdapterState,
    DrainReport,
    Failure,
    FailureReason,
    Measured,
    Phase,
    State,
    Transfer,
    TransferStep,
)
from llmservice_runtime.documents import Document
from llmservice_runtime.fetch_protocol import Request, ended_line, read_document, read_ended
from llmservice_runtime.group.protocol import Hello, Order, Report, Step
from llmservice_runtime.inspection.inspected import Inspection
from llmservice_runtime.launch import Change
from llmservice_runtime.supervisor.processes import Ended

from tests.unit.hostile import anything, objects, texts

FAILURE = Failure(
    FailureReason.GPU_OUT_OF_MEMORY, "It is full.", "Take less.", ("line one", "line two"), Phase.LOADING, 1, 9
)
MEASURED = Measured("0.32.0", 1000, 2.5, 4096, 10.5, 14.2, 30.1, 20.0, 60.0, "Unused", "it is full")
TRANSFER = Transfer("model", TransferStep.DOWNLOADING, 10, 100, 5.0)
STATE = State(
    Phase.FETCHING,
    progress="fetching",
    phase_seconds=3.0,
    start_budget_seconds=600,
    usual_start_seconds=60,
    model_names=("x",),
    measured=MEASURED,
    transfer=TRANSFER,
    adapters=(AdapterState("a", loaded=False, message="no"),),
    adapters_hash="h",
    failure=FAILURE,
)
INSPECTION = Inspection(
    "0123456789abcdef",
    {"model_type": "qwen2", "hidden_size": 3584, "layer_types": [["full_attention", 28]], "rope_theta": 1e6},
    {"embedding": 1, "dtype": "bfloat16"},
)
BROKEN = Inspection("main", failure=FAILURE)
REQUEST = Request(("model=hf://org/tiny",), "fp8", "yarn:4", ("--model", "m", "--hf-overrides", '{"a": 1}'))


def document(of: Any) -> Any:
    return json.loads(of.to_json())


def assert_bounded(value: Any) -> None:
    """Every part can be written into a status, a log and a metric."""
    if is_dataclass(value):
        for each in fields(value):
            assert_bounded(getattr(value, each.name))
    elif isinstance(value, str):
        value.encode()
        assert len(value) <= TERMINATION_LIMIT
        assert not set(value) & {"\x00", "\x1b"}
    elif isinstance(value, int | float):
        assert math.isfinite(value)
        assert abs(value) <= 2**63
    elif isinstance(value, dict):
        assert_bounded(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            assert_bounded(item)
    else:
        assert value is None


@pytest.mark.parametrize("whole", [STATE, INSPECTION, BROKEN, TRANSFER, FAILURE, DrainReport(3), REQUEST], ids=repr)
def test_what_is_written_is_read_as_it_was(whole: Any) -> None:
    text = json.dumps(document(whole) | {"version": 1})
    assert type(whole).from_json(text) == whole


NINES, DEEP = "9" * 5000, '{"a":' * 40 + "1" + "}" * 40
REFUSED: dict[str, tuple[Any, str, str]] = {
    "bytes that no double holds": (STATE, "transfer", "1e400"),
    "text where seconds are expected": (STATE, "usualStartSeconds", '"soon"'),
    "half of a surrogate pair": (STATE, "progress", '"\\ud800"'),
    "an integer of 5,000 digits": (STATE, "phaseSeconds", NINES),
    "an integer of 4,000 digits": (STATE, "phaseSeconds", NINES[:4000]),
    "infinite seconds": (STATE, "startBudgetSeconds", "1e400"),
    "a boolean that is text": (STATE, "ready", '"false"'),
    "a transfer that is text": (STATE, "transfer", '"x"'),
    "names that are a text": (STATE, "modelNames", '"abc"'),
    "not a number": (INSPECTION, "config", '{"hidden_size":NaN}'),
    "a size beyond 64 bits": (INSPECTION, "config", '{"hidden_size":' + "9" * 30 + "}"),
    "a deep config": (INSPECTION, "config", DEEP),
    "a surrogate in a config": (INSPECTION, "config", '{"model_type":"\\udfff"}'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_value_is_refused(case: str) -> None:
    whole, field, value = REFUSED[case]
    text = json.dumps(document(whole) | {field: "VALUE"}).replace('"VALUE"', value)
    assert type(whole).from_json(text) is None


@pytest.mark.parametrize("kind", [State, Failure, DrainReport, Inspection])
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"version":1,"drain":['], ids=["lists", "objects", "a drain"])
def test_depth_costs_no_recursion(kind: Any, opening: str) -> None:
    assert kind.from_json(opening * (TERMINATION_LIMIT // len(opening))) is None


def test_the_depth_of_a_document_is_bounded() -> None:
    parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, TERMINATION_LIMIT)
    with pytest.raises(Refused, match="deeper than 16"):
        parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), TERMINATION_LIMIT)


def fetch_line(line: str) -> None:
    read_document(line)
    str(read_ended(line))


LINES = (
    texts({"transfer": document(TRANSFER)})
    | texts({"failure": document(FAILURE)})
    | texts({"artifact": "model", "path": "/x"})
    | texts(json.loads(ended_line(Ended(None, 9))))
)
ENVIRONMENT = Change({"LD_PRELOAD": "/lib/libgomp.so.1", "OMP_NUM_THREADS": "1"}, ("HF_TOKEN",))
HELLO = Hello(1, 2, "chat-0.chat", "r", "i", "chat-0-1", "node-b", "0.32.0", "beef")
REPORT = Report(3, Step.FAILED, progress="loading the weights: 7%", failure=FAILURE)
ORDER = Order(3, run=True, blamed=1, refused="it is another's")


def near(whole: Document) -> tuple[st.SearchStrategy[Any], Callable[[Any], Any]]:
    return texts(whole.to_document()), lambda text: whole.from_document(parse(text))


NEAR: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "state": (texts(document(STATE)), State.from_json),
    "failure": (texts(document(FAILURE)), Failure.from_json),
    "drain report": (texts(document(DrainReport(3))), DrainReport.from_json),
    "inspection": (texts(document(INSPECTION)) | texts(document(BROKEN)), Inspection.from_json),
    "parsed inspection": (objects(INSPECTION.to_document()), Inspection.from_document),
    "transfer": (texts(document(TRANSFER)), Transfer.from_json),
    "line of the fetch container": (LINES, fetch_line),
    "hello of a group's pod": near(HELLO),
    "report of a group's worker": near(REPORT),
    "order of a group's leader": near(ORDER),
    "environment of a process": (texts(ENVIRONMENT.to_document()), lambda text: Change.from_document(parse(text))),
}


@pytest.mark.parametrize("kind", NEAR)
@given(data=st.data())
def test_any_text_near_a_document_is_read_bounded_or_refused(kind: str, data: st.DataObject) -> None:
    strategy, read = NEAR[kind]
    with contextlib.suppress(Refused):
        found = read(data.draw(strategy))
        assert_bounded(found)
        if isinstance(found, State | Inspection | Transfer):
            found.to_json().encode()
        if isinstance(found, State) and found.transfer is not None:
            assert (found.transfer.eta_seconds or 0) < 2**63


@given(texts(document(REQUEST)))
def test_any_request_to_the_fetch_container(line: str) -> None:
    try:
        found = Request.from_json(line)
    except Refused:
        return
    words = (*found.fetch, found.weights, found.context_extension or "", *found.args)
    assert not set("".join(words)) & {"\x00", "\x1b"}, "they become arguments of a process"
    assert found.fetch
    assert Request.from_json(found.to_json()) == found


@given(anything)
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        value = parse(text)
    except Refused as refused:
        str(refused).encode()
        return
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
