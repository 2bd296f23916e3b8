"""`llmservice status`: pods by phase, the plan beside what was measured, the rollout, Events, and several services."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmservice_cli.errors import CliError
from llmservice_cli.status.screen import LONGEST as LONGEST_BAR
from llmservice_cli.status.screen import bars
from llmservice_cli.status.snapshot import LONGEST, MOST_COUNTED, MOST_SHOWN, Phase, aggregated, counts, phase_of
from llmservice_cli.terminal import plain
from llmservice_operator.facts.pods import PodFacts

from tests.unit.api_server import ApiServer
from tests.unit.cli.test_status import STAMP, api, condition, has_pods, pod, service
from tests.unit.cli_world import SERVICES, Command, Json

__all__ = ["api"]

EVENTS = "/api/v1/namespaces/team/events"


async def screen_of(llmservice: Command, *names: str) -> list[str]:
    return [line.strip() for line in (await llmservice.within("status", *names or ("chat",))).out.splitlines()]


def in_phase(
    state: Json | None = None, *, node: str = "node-a", deleting: bool = False, phase: str = "Running"
) -> Json:
    """A pod whose server is in this state."""
    found = pod("chat-1", ready=False)
    found["spec"] = {"nodeName": node} if node else {}
    found["status"] |= {"phase": phase}
    found["status"]["containerStatuses"][0] |= {"state": state or {"waiting": {"reason": "PodInitializing"}}}
    if deleting:
        found["metadata"]["deletionTimestamp"] = STAMP
    return found


def progress(phase: str, pod: str = "chat-1") -> Json:
    return {"progress": {"pod": pod, "phase": phase}}


RUNNING = {"running": {"startedAt": STAMP}}
CRASHED = {"waiting": {"reason": "CrashLoopBackOff"}}
PHASES: dict[str, tuple[Json, Json, Phase]] = {
    "no node": (in_phase(node="", phase="Pending"), {}, Phase.PENDING),
    "its containers are made": (in_phase(phase="Pending"), {}, Phase.PENDING),
    "it fetches": (in_phase(RUNNING), progress("Fetching"), Phase.FETCHING),
    "it loads": (in_phase(RUNNING), progress("Loading"), Phase.LOADING),
    "its first request": (in_phase(RUNNING), progress("Smoke"), Phase.STARTING),
    "what is reported is of another pod": (in_phase(RUNNING), progress("Loading", "chat-2"), Phase.STARTING),
    "nothing is reported": (in_phase(RUNNING), {}, Phase.STARTING),
    "it crashes": (in_phase(CRASHED), progress("Loading"), Phase.FAILING),
    "it has ended": (in_phase({"terminated": {"exitCode": 1, "reason": "Error"}}), {}, Phase.FAILING),
    "the image is not found": (in_phase({"waiting": {"reason": "ErrImagePull"}}, phase="Pending"), {}, Phase.FAILING),
    "it tries again": (in_phase(RUNNING), {"failure": {"pod": "chat-1"}}, Phase.FAILING),
    "another one failed": (in_phase(RUNNING), {"failure": {"pod": "chat-2"}}, Phase.STARTING),
    "it was evicted": (in_phase(phase="Failed"), {}, Phase.FAILING),
    "it goes away": (in_phase(RUNNING, deleting=True), {}, Phase.DRAINING),
    "it is ready": (pod("chat-1"), progress("Smoke"), Phase.READY),
}


@pytest.mark.parametrize(("found", "reported", "phase"), PHASES.values(), ids=PHASES)
def test_the_phase_of_a_pod(found: Json, reported: Json, phase: Phase) -> None:
    assert phase_of(PodFacts.from_object(found), reported) is phase


def test_bars_are_drawn_with_characters() -> None:
    phases = counts([Phase.READY, Phase.FAILING, Phase.READY])
    assert [plain(row) for row in bars(phases, is_styled=False)] == ["ready     ## 2", "failing   # 1"]
    assert plain(next(bars(phases, is_styled=True))) == "ready     ██ 2"
    many = {Phase.PENDING: 1, Phase.READY: 1000}
    lengths = [row[1][0].count("#") for row in bars(many, is_styled=False)]
    assert lengths == [1, LONGEST_BAR]


async def test_replicas_by_phase(api: ApiServer, llmservice: Command) -> None:
    has_pods(api, pod("chat-1"), pod("chat-2"), pod("chat-3", ready=False, waiting="CrashLoopBackOff"))
    lines = await screen_of(llmservice)
    assert lines[lines.index("replicas by phase") + 1 :][:2] == ["ready     ## 2", "failing   # 1"]
    (found,) = (await llmservice.within("status", "chat", "-o", "json")).json["services"]
    assert found["podsByPhase"] == {"ready": 2, "failing": 1}
    assert [each["phase"] for each in found["pods"]] == ["ready", "ready", "failing"]


PLAN = {
    "verdict": "Fits",
    "kvCacheTokens": 8000,
    "maxConcurrency": 4.0,
    "requestedMaxModelLen": 2000,
    "perGPU": {"weightsGiB": 10.0, "kvCacheGiB": 1.0},
}


async def test_the_plan_beside_what_was_measured(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{SERVICES}/chat"] = service(plan=PLAN)
    lines = await screen_of(llmservice)
    rows = [line.split() for line in lines[lines.index("planned and measured") + 2 :][:5]]
    assert rows == [
        ["weights,", "GiB", "of", "a", "GPU", "10.00", "-", "-"],
        ["KV", "cache,", "GiB", "of", "a", "GPU", "1.00", "1.25", "+25.0", "%"],
        ["KV", "cache", "tokens", "8,000", "8,192", "+2.4", "%"],
        ["max", "concurrency", "4.00", "-", "-"],
        ["longest", "request,", "tokens", "2,000", "-", "-"],
    ]
    assert "start seconds: 31.5" in lines
    assert not any(line.startswith("kv cache tokens:") for line in lines), "it has its place in the table"


async def test_what_would_fit_comes_with_its_command(api: ApiServer, llmservice: Command) -> None:
    remedy = {"change": "set spec.batching.maxModelLen to 8", "verdict": "Fits", "patch": '{"spec":{"a":"it\'s"}}'}
    api.objects[f"{SERVICES}/chat"] = service(plan=PLAN | {"verdict": "DoesNotFit", "remedies": [remedy]})
    lines = await screen_of(llmservice)
    at = lines.index("what would fit")
    assert lines[at + 1] == "set spec.batching.maxModelLen to 8 (Fits)"
    assert lines[at + 2].startswith('kubectl patch llms chat -n team --type merge -p \'{"spec"')
    assert "it'\"'\"'s" in lines[at + 2], "quoted for a shell"


async def test_a_rollout_that_is_under_way(api: ApiServer, llmservice: Command) -> None:
    rollout: Json = {"revision": "new", "stableRevision": "old", "strategy": "Replace", "reason": "No GPU is free."}
    rollout |= {"updateWaiting": "Others first.", "updatePending": True, "failedRevision": "bad"}
    api.objects[f"{SERVICES}/chat"] = service(rollout=rollout, ready="1/3")
    lines = await screen_of(llmservice)
    assert "revision    new, strategy Replace" in lines
    for line in (
        "from old to new: 1 of 3 updated, 1 available",
        "why so: No GPU is free.",
        "failed revision: bad",
        "the update waits: Others first.",
        "a change of the operator waits for the next rollout: llmservice update chat has it now",
    ):
        assert line in lines
    api.objects[f"{SERVICES}/chat"] = service(rollout={"revision": "new", "stableRevision": "new"})
    assert "rollout" not in await screen_of(llmservice)


async def test_a_message_that_several_conditions_have_is_shown_once(api: ApiServer, llmservice: Command) -> None:
    conditions = [condition("Ready", "False", "DoesNotFit"), condition("Stalled", "True", "DoesNotFit")]
    api.objects[f"{SERVICES}/chat"] = service(conditions=conditions)
    assert "\n".join(await screen_of(llmservice)).count("as it is") == 1


# Events


def event(reason: str, *, about: str = "chat", message: str = "why", **more: Any) -> Json:
    found = {"involvedObject": {"kind": "LLMService", "name": about}, "reason": reason, "message": message}
    return {"type": "Normal", "lastTimestamp": STAMP, "metadata": {"name": reason}, **found, **more}


def has_events(api: ApiServer, *events: Json) -> None:
    api.objects |= {f"{EVENTS}/{number}": each for number, each in enumerate(events)}


async def test_events_of_the_service_and_its_pods_are_counted_by_reason(api: ApiServer, llmservice: Command) -> None:
    has_pods(api, pod("chat-1", ready=False))
    later = {"lastTimestamp": "2026-01-02T00:00:00Z", "message": "the latest"}
    backs_off = {"type": "Warning", "about": "chat-1"}
    has_events(
        api,
        event("Starting"),
        event("BackOff", count=3, **backs_off),
        event(
            "BackOff",
            series={"count": 4, "lastObservedTime": later["lastTimestamp"]},
            **backs_off,
            message="the latest",
        ),
        event("Elsewhere", about="other-1"),
    )
    lines = await screen_of(llmservice)
    rows = [line.split() for line in lines[lines.index("last Events") + 2 :]]
    assert [row[1:] for row in rows] == [
        ["x7", "LLMService", "BackOff", "the", "latest"],
        ["x1", "LLMService", "Starting", "why"],
    ]
    (found,) = (await llmservice.within("status", "chat", "-o", "json")).json["services"]
    assert [(each["type"], each["reason"], each["count"]) for each in found["events"]] == [
        ("Warning", "BackOff", 7),
        ("Normal", "Starting", 1),
    ]


async def test_events_that_may_not_be_listed(api: ApiServer, llmservice: Command) -> None:
    api.refused = {"events": 403}
    lines = await screen_of(llmservice)
    assert any(
        line.startswith("not listed: needs list events in namespace team")
        for line in lines[lines.index("last Events") :]
    )
    (found,) = (await llmservice.within("status", "chat", "-o", "json")).json["services"]
    assert found["eventsUnread"].startswith("not listed")


TEXTS = st.text(max_size=400) | st.none() | st.integers() | st.lists(st.integers(), max_size=2)
FOREIGN = st.recursive(
    TEXTS,
    lambda inner: st.dictionaries(
        st.sampled_from(
            [
                "involvedObject",
                "kind",
                "name",
                "reason",
                "message",
                "type",
                "count",
                "series",
                "lastTimestamp",
                "eventTime",
            ]
        ),
        inner | st.sampled_from([STAMP, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", 10**30, True]),
    ),
    max_leaves=20,
)


@settings(max_examples=4 * settings().max_examples)  # few of what is drawn is an Event
@given(st.lists(FOREIGN, max_size=15))
def test_whatever_an_event_holds_is_bounded_and_cleaned(objects: Sequence[object]) -> None:
    found = aggregated(objects)
    assert len(found) <= MOST_SHOWN
    for each in found:
        assert 1 <= each.count <= MOST_COUNTED
        assert len(each.message) <= LONGEST
        assert not set(map(ord, each.message + each.reason + each.kind)) & {*range(0x20), *range(0x7F, 0xA0)}
        assert each.to_object()["lastSeen"]
        assert (datetime.now(UTC) - each.last).total_seconds()


# Several services


async def test_several_names_and_one_that_does_not_exist(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{SERVICES}/other"] = service("other")
    out = (await llmservice.within("status", "other", "chat")).out
    assert out.index("other in namespace team") < out.index("chat in namespace team")
    found = (await llmservice.within("status", "other", "chat", "-o", "json")).json
    assert [each["name"] for each in found["services"]] == ["other", "chat"]
    with pytest.raises(CliError, match="no LLMService 'nobody'"):
        await llmservice.within("status", "nobody", "chat")
    assert "chat in namespace team" in llmservice.capsys.readouterr().out


def test_a_name_and_all_namespaces(llmservice: Command) -> None:
    ran = llmservice("status", "chat", "-A")
    assert ran.code == 2
    assert "leave out either NAME or --all-namespaces" in ran.err
