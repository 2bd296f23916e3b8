"""`llmservice wait`: a list, and a watch that goes on from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import LLMSERVICE
from llmservice_api.reasons import Reason
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.wait.command import Outcome, Wish, assess

from tests.support.http_servers import cluster
from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.cli_world import SERVICES, Command, Json, Ran
from tests.unit.status_states import CASES, UNREPORTED

STAMP = "2026-01-01T00:00:00Z"


def service(*conditions: str, generation: int = 2, observed: int = 2, **more: Any) -> Json:
    """Conditions are written as "Ready False Starting"."""
    found = [
        {"type": kind, "status": status, "reason": reason, "message": f"{reason} it is."}
        | {"observedGeneration": observed, "lastTransitionTime": STAMP}
        for kind, status, reason in map(str.split, conditions)
    ]
    metadata = {"name": "chat", "namespace": "team", "uid": "u", "generation": generation}
    status = {"observedGeneration": observed, "conditions": found, **more.pop("status", {})}
    return {"metadata": {**metadata, **more}, "spec": {}, "status": status}


def starting(phase: str) -> Json:
    return service("Ready False Starting", "Reconciling True Starting", status={"progress": {"phase": phase}})


READY = service("Ready True RolledOut", "Available True ReplicasReady")
STARTING, COMPILING = starting("Loading"), starting("Compiling")
TOO_LARGE = service("Ready False DoesNotFit", "Stalled True DoesNotFit")
UNSEEN = service("Ready True RolledOut", generation=3)


class Wait:
    """`versions` are what lists and watches bring, in this order: an object, None where there is none, the code of an
    error, or "end" of a watch."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> None:
        self.folder, self.monkeypatch, self.llmservice, self.api = folder, monkeypatch, llmservice, ApiServer()

    async def __call__(self, versions: Sequence[Any], *words: str) -> Ran:
        lists = self.api.refused["list llmservices"] = list[Any]()
        is_listed = True
        for found in versions:
            is_code = isinstance(found, int)
            if is_listed:
                items = [found] if found else []
                lists.append(found if is_code else {"metadata": {"resourceVersion": "7"}, "items": items})
            elif found == "end":
                self.api.streams[LLMSERVICE].put_nowait(None)
            elif is_code:
                self.api.bring("ERROR", {"kind": "Status", "code": found, "message": "too old"})
            else:
                self.api.bring("MODIFIED" if found else "DELETED", found or STARTING)
            is_listed = is_code or found == "end"
        self.monkeypatch.setattr("llmservice_cli.api.PAUSE", 0.0)
        async with (
            asyncio.timeout(PATIENCE),
            cluster(self.api.answer, self.folder, self.monkeypatch, shutdown_timeout=0),
        ):
            return await self.llmservice.within("wait", "chat", *words)


@pytest.fixture
def wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> Wait:
    return Wait(tmp_path, monkeypatch, llmservice)


ONE_ANSWERS = service("Ready False Starting", "Available True ReplicasReady")
TO_ZERO = service("Ready True ScaledToZero", "Available False ScaledToZero")
AVAILABLE, SOON, NOW = ("--for", "Available"), ("--timeout", "0.3"), ("--timeout", "0")
DONE, FAILED, UNKNOWN = ExitCode.DONE, ExitCode.FAILED, ExitCode.UNKNOWN
ENDS: dict[str, tuple[Sequence[Any], Sequence[str], ExitCode, str]] = {
    "it is Ready": ([READY], (), DONE, "chat is Ready: RolledOut"),
    "it becomes Ready": ([None, STARTING, COMPILING, READY], (), DONE, "chat is Ready"),
    "Ready was of an earlier generation": ([UNSEEN, TOO_LARGE], (), FAILED, "cannot become Ready: DoesNotFit"),
    "it stalls": ([STARTING, TOO_LARGE, READY], (), FAILED, f"what to do: {Reason.DOES_NOT_FIT.remedy}"),
    "it is paused": ([service("Ready False Paused")], (), FAILED, "cannot become Ready: Paused"),
    "it is deleted": ([STARTING, None], (), FAILED, "cannot become Ready: Deleted"),
    "it is being deleted": ([service(deletionTimestamp=STAMP)], (), FAILED, "Deleting"),
    "one replica answers": ([ONE_ANSWERS], AVAILABLE, DONE, "chat is Available"),
    "there is to be no replica": ([TO_ZERO], AVAILABLE, FAILED, "cannot become Available: ScaledToZero"),
    "the watch ends": ([STARTING, "end", READY], (), DONE, "chat is Ready"),
    "the watch expires": ([STARTING, 410, READY], (), DONE, "chat is Ready"),
    "the API server fails for a while": ([STARTING, "end", 500, READY], (), DONE, "chat is Ready"),
    "the time is over": ([STARTING], SOON, UNKNOWN, "chat is not Ready within 0s"),
    "there is none in time": ([None], SOON, UNKNOWN, "There is no such LLMService yet."),
    "one list, not ready": ([STARTING, READY], NOW, UNKNOWN, "chat is not Ready now"),
    "one list, stalled": ([TOO_LARGE], NOW, FAILED, "cannot become Ready"),
    "no operator": ([service(observed=-1)], NOW, UNKNOWN, "see whether the operator runs"),
}


@pytest.mark.parametrize(("versions", "words", "code", "printed"), ENDS.values(), ids=ENDS)
async def test_it_ends_as_soon_as_the_answer_is_known(
    versions: Sequence[Any], words: Sequence[str], code: ExitCode, printed: str, wait: Wait
) -> None:
    ran = await wait(versions, *words)
    assert ran.code == code
    assert printed in (ran.out if code == DONE else ran.err)
    assert (ran.out == "") == (code != DONE)


async def test_a_failure_has_a_remedy_of_its_own(wait: Wait) -> None:
    failure = {"failure": {"reason": "KVCacheTooSmall", "remedy": "Lower it to 4096."}}
    ran = await wait([service("Stalled True KVCacheTooSmall", status=failure)])
    assert "what to do: Lower it to 4096." in ran.err


async def test_it_watches_and_does_not_poll_and_progress_is_a_line_for_each_phase(wait: Wait) -> None:
    ran = await wait([None, *[STARTING] * 50, *[COMPILING] * 50, READY])
    assert ran.err.splitlines() == [
        "chat: NotFound: There is no such LLMService yet.",
        "chat: Starting (Loading): Starting it is.",
        "chat: Starting (Compiling): Starting it is.",
    ]
    (_, path, listed, _), (_, _, watched, _) = wait.api.requests
    assert (path, listed) == (SERVICES, {"fieldSelector": "metadata.name=chat"})
    assert watched.items() >= {*listed.items(), ("watch", "true"), ("resourceVersion", "7")}


@pytest.mark.parametrize(("status", "remedy"), [(404, "install the operator"), (403, "grant it"), (500, "log")])
async def test_an_api_server_that_never_answered_ends_it(status: int, remedy: str, wait: Wait) -> None:
    with pytest.raises(CliError, match=remedy) as error:
        await wait([status])
    assert error.value.exit_code == 2, "1 means that the service cannot become Ready"


async def test_an_address_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmservice: Command
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server="http://127.0.0.1:1")))
    with pytest.raises(CliError, match="check the server's address") as error:
        await llmservice.within("wait", "chat")
    assert error.value.exit_code == 2


@pytest.mark.parametrize("time", ["soon", "-1", "1d", ""])
def test_no_wrong_time_is_taken(time: str, llmservice: Command) -> None:
    ran = llmservice("wait", "chat", "--timeout", time)
    assert (ran.code, "is not a length of time" in ran.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("name", CASES)
def test_every_state_of_a_service_is_read_as_the_operator_means_it(name: str) -> None:
    """Ready is met, Stalled and paused are impossible, and everything else may yet come."""
    case = CASES[name]
    expected = Outcome.OPEN
    if "Ready" in case.true:
        expected = Outcome.MET
    elif "Stalled" in case.true or case.reason in ("Paused", "Deleting"):
        expected = Outcome.IMPOSSIBLE
    assert assess(case.make().obj, ConditionType.READY, was_there=True).outcome is expected


@pytest.mark.parametrize("name", UNREPORTED)
def test_conditions_of_another_generation_are_ignored(name: str) -> None:
    make, *_ = UNREPORTED[name]
    expected = Outcome.IMPOSSIBLE if name == "being deleted" else Outcome.OPEN
    assert assess(make().obj, ConditionType.READY, was_there=True).outcome is expected


@pytest.mark.parametrize("wanted", [ConditionType.AVAILABLE, ConditionType.ACCEPTED])
def test_a_condition_that_was_not_evaluated_for_an_edit_is_not_met(wanted: ConditionType) -> None:
    """An error inside the operator is a condition of the edit, and leaves what was known before."""
    edited = service("Stalled True InternalError", f"{wanted} True R", generation=5, observed=5)
    edited["status"]["conditions"][1]["observedGeneration"] = 4
    assert assess(edited, wanted, was_there=True).outcome is Outcome.IMPOSSIBLE


@pytest.mark.parametrize(
    ("versions", "outcome", "code"),
    [([READY], "met", DONE), ([TOO_LARGE], "impossible", FAILED), ([STARTING], "open", UNKNOWN)],
)
async def test_the_answer_for_programs(versions: Sequence[Any], outcome: str, code: ExitCode, wait: Wait) -> None:
    ran = await wait(versions, "--timeout", "0", "-q", "-o", "json")
    found = ran.json
    assert (ran.code, found["version"], found["outcome"], found["condition"]) == (code, 1, outcome, "Ready")
    assert (found["name"], found["namespace"]) == ("chat", "team")
    if code == FAILED:
        assert (found["reason"], found["remedy"]) == ("DoesNotFit", Reason.DOES_NOT_FIT.remedy)


async def test_quiet_leaves_progress_out(wait: Wait) -> None:
    ran = await wait([STARTING, COMPILING, READY], "-q")
    assert (ran.out, ran.err) == ("chat is Ready: RolledOut: RolledOut it is.\n", "")


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (service("Ready True RolledOut", status={"rollout": {"updatePending": True}}), Outcome.OPEN),
        (READY, Outcome.MET),
        (TOO_LARGE, Outcome.IMPOSSIBLE),
    ],
)
def test_an_update_is_waited_for_although_the_service_is_ready_before_it(seen: Json, outcome: Outcome) -> None:
    wish = Wish("team", "chat", applied_update=True)
    assert wish.assess(seen, was_there=True).outcome is outcome


async def test_a_fetch_says_how_long_it_will_take_and_a_line_is_a_tenth(wait: Wait) -> None:
    def fetched(percent: int) -> Json:
        progress = {"phase": "Fetching", "percent": percent, "etaSeconds": 90}
        return service("Reconciling True Starting", status={"progress": progress})

    ran = await wait([*map(fetched, (1, 5, 12, 13)), READY])
    assert ran.err.splitlines() == [
        "chat: Starting (Fetching, 1 %, about 1m30s left): Starting it is.",
        "chat: Starting (Fetching, 12 %, about 1m30s left): Starting it is.",
    ]
