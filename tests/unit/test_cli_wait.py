"""`llmservice wait` against a real HTTP server that plays the API server: a list, and a watch that goes on from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.wait import changes
from llmservice_cli.wait.assessment import AWAITED, Outcome, assess
from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.api.reasons import Reason

from tests.support.http_servers import cluster
from tests.support.kubeconfig import kubeconfig

from .status_states import CASES, UNREPORTED

Json = dict[str, Any]
SERVICES = "/apis/llmservice.dev/v1alpha1/namespaces/team/llmservices"
STAMP = "2026-01-01T00:00:00Z"


def service(*conditions: tuple[str, str, str], generation: int = 2, observed: int = 2, **more: Any) -> Json:
    told = [
        {"type": kind, "status": status, "reason": reason, "message": f"{reason} it is."}
        | {"observedGeneration": observed, "lastTransitionTime": STAMP}
        for kind, status, reason in conditions
    ]
    metadata = {"name": "chat", "namespace": "team", "uid": "u", "generation": generation}
    status = {"observedGeneration": observed, "conditions": told, **more.pop("status", {})}
    return {"metadata": {**metadata, **more}, "spec": {}, "status": status}


READY = service(("Ready", "True", "RolledOut"), ("Available", "True", "ReplicasReady"))
STARTING = service(
    ("Ready", "False", "Starting"), ("Reconciling", "True", "Starting"), status={"progress": {"phase": "Loading"}}
)
COMPILING = service(
    ("Ready", "False", "Starting"), ("Reconciling", "True", "Starting"), status={"progress": {"phase": "Compiling"}}
)
TOO_LARGE = service(("Ready", "False", "DoesNotFit"), ("Stalled", "True", "DoesNotFit"))
UNSEEN = service(("Ready", "True", "RolledOut"), generation=3)


@dataclass
class Api:
    """`looks` are what lists and watches bring, in this order: an object, None where there is none, or an error."""

    looks: list[Any] = field(default_factory=list)
    lists: int = 0
    watches: list[Mapping[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.path == SERVICES
        assert request.query["fieldSelector"] == "metadata.name=chat"
        if "watch" not in request.query:
            self.lists += 1
            look = self.looks.pop(0)
            if isinstance(look, int):
                message = 'you cannot list resource "llmservices"'
                return web.json_response({"kind": "Status", "code": look, "message": message}, status=look)
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [look] if look else []})
        self.watches.append(dict(request.query))
        response = web.StreamResponse()
        await response.prepare(request)
        while self.looks:
            look = self.looks.pop(0)
            if look == "end":
                break
            if isinstance(look, int):
                event: Json = {"type": "ERROR", "object": {"kind": "Status", "code": look, "message": "too old"}}
            else:
                event = {"type": "MODIFIED", "object": look} if look else {"type": "DELETED", "object": STARTING}
            await response.write(json.dumps(event).encode() + b"\n")
            if isinstance(look, int):
                break
        else:
            await asyncio.sleep(3600)
        return response


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    made = Api()
    async with cluster(made.answer, tmp_path, monkeypatch, shutdown_timeout=0):
        monkeypatch.setattr(changes, "PAUSE", 0.0)
        yield made


async def wait(api: Api, looks: Sequence[Any], *words: str) -> ExitCode:
    api.looks = list(looks)
    options = make_parser(("wait",)).parse_args(("wait", "chat", *words))
    code: ExitCode = await options.run(options)
    return code


ENDS: dict[str, tuple[Sequence[Any], Sequence[str], ExitCode, str]] = {
    "it is Ready": ([READY], (), ExitCode.DONE, "chat is Ready: RolledOut"),
    "it becomes Ready": ([None, STARTING, COMPILING, READY], (), ExitCode.DONE, "chat is Ready"),
    "Ready was of an earlier generation": ([UNSEEN, TOO_LARGE], (), ExitCode.FAILED, "cannot become Ready: DoesNotFit"),
    "it stalls": ([STARTING, TOO_LARGE, READY], (), ExitCode.FAILED, "DoesNotFit it is."),
    "it is paused": ([service(("Ready", "False", "Paused"))], (), ExitCode.FAILED, "cannot become Ready: Paused"),
    "it is deleted": ([STARTING, None], (), ExitCode.FAILED, "cannot become Ready: Deleted"),
    "it is being deleted": ([service(deletionTimestamp=STAMP)], (), ExitCode.FAILED, "Deleting"),
    "one replica answers": (
        [service(("Ready", "False", "Starting"), ("Available", "True", "ReplicasReady"))],
        ("--for", "Available"),
        ExitCode.DONE,
        "chat is Available",
    ),
    "there is to be no replica": (
        [service(("Ready", "True", "ScaledToZero"), ("Available", "False", "ScaledToZero"))],
        ("--for", "Available"),
        ExitCode.FAILED,
        "cannot become Available: ScaledToZero",
    ),
    "the watch ends": ([STARTING, "end", READY], (), ExitCode.DONE, "chat is Ready"),
    "the watch loses its place": ([STARTING, 410, READY], (), ExitCode.DONE, "chat is Ready"),
    "the API server fails for a while": ([STARTING, "end", 500, READY], (), ExitCode.DONE, "chat is Ready"),
    "the time is over": ([STARTING], ("--timeout", "0.3"), ExitCode.UNKNOWN, "chat is not Ready within 0s"),
    "there is none in time": ([None], ("--timeout", "0.3"), ExitCode.UNKNOWN, "There is no such LLMService yet."),
    "one look, ready": ([READY], ("--timeout", "0"), ExitCode.DONE, "chat is Ready"),
    "one look, not ready": ([STARTING, READY], ("--timeout", "0"), ExitCode.UNKNOWN, "chat is not Ready now"),
    "one look, stalled": ([TOO_LARGE], ("--timeout", "0"), ExitCode.FAILED, "cannot become Ready"),
    "no operator": ([service(observed=-1)], ("--timeout", "0"), ExitCode.UNKNOWN, "see whether the operator runs"),
}


@pytest.mark.parametrize(("looks", "words", "code", "said"), ENDS.values(), ids=ENDS)
async def test_it_ends_as_soon_as_the_answer_is_known(
    looks: Sequence[Any], words: Sequence[str], code: ExitCode, said: str, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    async with asyncio.timeout(20):
        assert await wait(api, looks, *words) == code
    out, err = capsys.readouterr()
    assert said in (out if code == ExitCode.DONE else err)
    assert (out == "") == (code != ExitCode.DONE)


async def test_what_stands_in_the_way_comes_with_its_remedy(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    await wait(api, [TOO_LARGE])
    assert f"what to do: {Reason.DOES_NOT_FIT.remedy}" in capsys.readouterr().err
    failure = {"failure": {"reason": "KVCacheTooSmall", "remedy": "Lower it to 4096."}}
    await wait(api, [service(("Stalled", "True", "KVCacheTooSmall"), status=failure)])
    assert "what to do: Lower it to 4096." in capsys.readouterr().err


async def test_progress_is_a_line_for_each_phase(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    await wait(api, [None, STARTING, STARTING, COMPILING, COMPILING, READY])
    assert capsys.readouterr().err.splitlines() == [
        "chat: NotFound: There is no such LLMService yet.",
        "chat: Starting (Loading): Starting it is.",
        "chat: Starting (Compiling): Starting it is.",
    ]


async def test_it_watches_and_does_not_poll(api: Api) -> None:
    await wait(api, [*[STARTING, COMPILING] * 50, READY])
    assert api.lists == 1
    assert [watch["resourceVersion"] for watch in api.watches] == ["7"]


@pytest.mark.parametrize(("status", "said"), [(404, "install the operator"), (403, "grant it"), (500, "log")])
async def test_an_api_server_that_never_answered_ends_it(status: int, said: str, api: Api) -> None:
    with pytest.raises(CliError) as error:
        await wait(api, [status])
    assert said in str(error.value)
    assert error.value.exit_code == 2, "1 means that the service cannot become Ready"


async def test_an_address_that_nobody_answers_at_says_nothing_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server="http://127.0.0.1:1")))
    with pytest.raises(CliError, match="check the server's address") as error:
        await wait(Api(), [])
    assert error.value.exit_code == 2


def test_no_wrong_time_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("soon", "-1", "1d", ""):
        with pytest.raises(SystemExit) as end:
            make_parser(("wait",)).parse_args(("wait", "chat", "--timeout", text))
        assert end.value.code == ExitCode.USAGE
    assert "is not a length of time" in capsys.readouterr().err


@pytest.mark.parametrize("name", CASES)
def test_every_state_of_a_service_is_read_as_the_operator_means_it(name: str) -> None:
    """Ready is met, Stalled and paused are impossible, and everything else may yet come."""
    case = CASES[name]
    found = assess(case.make().obj, ConditionType.READY, was_there=True)
    expected = Outcome.OPEN
    if "Ready" in case.true:
        expected = Outcome.MET
    elif "Stalled" in case.true or case.reason in ("Paused", "Deleting"):
        expected = Outcome.IMPOSSIBLE
    assert found.outcome is expected, (name, found)


@pytest.mark.parametrize("name", UNREPORTED)
def test_conditions_of_another_generation_say_nothing(name: str) -> None:
    make, *_ = UNREPORTED[name]
    expected = Outcome.IMPOSSIBLE if name == "being deleted" else Outcome.OPEN
    assert assess(make().obj, ConditionType.READY, was_there=True).outcome is expected


@pytest.mark.parametrize("wanted", [ConditionType.AVAILABLE, ConditionType.ACCEPTED])
def test_a_condition_that_was_not_evaluated_for_an_edit_is_not_met(wanted: ConditionType) -> None:
    """An error inside the operator says so about the edit, and leaves what was known before."""
    since = {"message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    stalled = {"type": "Stalled", "status": "True", "reason": "InternalError", "observedGeneration": 5} | since
    known = {"type": str(wanted), "status": "True", "reason": "R", "observedGeneration": 4} | since
    service = {
        "metadata": {"name": "chat", "namespace": "ns", "generation": 5},
        "status": {"observedGeneration": 5, "conditions": [stalled, known]},
    }
    assert assess(service, wanted, was_there=True).outcome is Outcome.IMPOSSIBLE


def test_what_can_be_waited_for_is_a_condition() -> None:
    assert set(AWAITED) <= set(ConditionType)
