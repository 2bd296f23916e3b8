"""`llmservice status`: conditions, failure, start, pods and live figures, on a screen and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.errors import CliError

from tests.unit.api_server import ApiServer
from tests.unit.cli_world import PODS, SERVICES, Command, Json
from tests.unit.decide_world import of_another, of_the_deployment

METRICS = (Path(__file__).parents[1] / "fixtures" / "vllm_metrics.txt").read_text()
STAMP = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str, reason: str) -> Json:
    found = {"type": kind, "status": status, "reason": reason, "message": "as it is"}
    return {**found, "observedGeneration": 2, "lastTransitionTime": STAMP}


def service(name: str = "chat", *, generation: int = 2, **status: Any) -> Json:
    ready = {
        "observedGeneration": 2,
        "conditions": [condition("Accepted", "True", "Valid"), condition("Ready", "True", "RolledOut")],
        "ready": "1/1",
        "updatedReplicas": 1,
        "availableReplicas": 1,
        "gpus": 2,
        "endpoint": {"url": f"http://{name}.team.svc/v1", "modelNames": [name, "alias"]},
        "rollout": {"revision": "0123456789", "strategy": "Surge"},
        "measured": {"kvCacheTokens": 8192, "kvCacheMemoryGiB": 1.25, "startSeconds": 31.5},
    }
    metadata = {"name": name, "namespace": "team", "uid": "uid-of-chat", "generation": generation}
    return {"metadata": metadata, "spec": {"model": {"uri": "hf://org/model"}}, "status": {**ready, **status}}


def pod(name: str, *, ready: bool = True, waiting: str = "", restarts: int = 0) -> Json:
    state = {"waiting": {"reason": waiting, "message": "why"}} if waiting else {"running": {}}
    labels = {"llmservice.dev/service": "chat", "llmservice.dev/revision": "0123456789"}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "server", "ready": ready, "state": state, "restartCount": restarts}],
    }
    metadata = {"name": name, "namespace": "team", "uid": name, "labels": labels}
    return of_the_deployment({"metadata": metadata, "status": status})


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    """With the service `chat`, and a pod of another one."""
    other = pod("other-1")
    other["metadata"]["labels"] = {"llmservice.dev/service": "other"}
    api_server.objects = {f"{SERVICES}/chat": service(), f"{PODS}/other-1": other}
    return api_server


def has_pods(api: ApiServer, *pods: Json, **metrics: Any) -> None:
    api.objects |= {f"{PODS}/{each['metadata']['name']}": each for each in pods}
    api.answers |= {f"{PODS}/{name.replace('_', '-')}:8000/proxy/metrics": text for name, text in metrics.items()}


async def test_a_serving_service_on_one_screen_and_as_json(api: ApiServer, llmservice: Command) -> None:
    has_pods(api, pod("chat-1", restarts=3), of_another(pod("copy")), chat_1=METRICS)
    screen = (await llmservice.within("status", "chat")).out
    for line in (
        "chat in namespace team: Ready is True: RolledOut",
        "endpoint    http://chat.team.svc/v1 as chat, alias",
        "replicas    1/1 ready, 1 of this revision, 1 available; 2 GPUs asked for",
        "revision    0123456789, strategy Surge",
        "kv cache tokens: 8192",
        "kv cache memory GiB: 1.25",
        "chat-1: requests refused by a queue limit: none",
    ):
        assert line in screen
    assert "what to do" not in screen
    assert "other-1" not in screen
    assert "copy" not in screen
    (row,) = [line.split() for line in screen.splitlines() if line.strip().startswith("chat-1 ")]
    assert row == ["chat-1", "Running", "yes", "3", "0", "0", "0.0", "%", "0.0", "%", "0"]
    found = (await llmservice.within("status", "chat", "-o", "json")).json
    (only,) = found["services"]
    assert (found["version"], only["name"], only["namespace"], only["statusIsOutdated"]) == (1, "chat", "team", False)
    assert (only["status"]["ready"], only["remedies"]) == ("1/1", {})
    (seen,) = only["pods"]
    assert (seen["name"], seen["ready"], seen["restarts"], seen["revision"]) == ("chat-1", True, 3, "0123456789")
    assert seen["live"]["requestsRunning"] == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (403, "needs get pods/proxy in namespace team"),
        (503, "503"),
        ("<html>", "not understood"),
        ((500, "\x1b[2Jbusy"), "[2Jbusy"),
    ],
    ids=["right", "down", "odd", "controls the terminal"],
)
async def test_what_cannot_be_read_comes_with_the_reason(
    api: ApiServer, llmservice: Command, answer: Any, why: str
) -> None:
    waiting = pod("chat-3", ready=False, waiting="CrashLoopBackOff")
    has_pods(api, pod("chat-1"), pod("chat-2"), waiting, chat_1=METRICS, chat_2=answer)
    screen = (await llmservice.within("status", "chat")).out
    assert "chat-2: no live figures, not" in screen
    assert why in screen
    assert "\x1b" not in screen
    assert "chat-3: no live figures, the pod is not ready" in screen
    first, second, third = (await llmservice.within("status", "chat", "-o", "json")).json["services"][0]["pods"]
    assert "live" in first
    assert why in second["liveUnread"]
    assert "live" not in second
    assert (third["state"], third["liveUnread"]) == ("CrashLoopBackOff", "the pod is not ready")


async def test_pods_that_may_not_be_listed(api: ApiServer, llmservice: Command) -> None:
    api.refused = {"pods": 403}
    assert "not listed: needs list pods in namespace team" in (await llmservice.within("status", "chat")).out
    assert "not listed" in (await llmservice.within("status", "chat", "-o", "json")).json["services"][0]["podsUnread"]


async def test_a_failure_comes_with_its_remedy_and_evidence(api: ApiServer, llmservice: Command) -> None:
    failure = {
        "reason": "ModelNotFound",
        "message": "there is no org/model",
        "remedy": "correct spec.model.uri",
        "pod": "chat-1",
        "since": STAMP,
        "evidence": ["RepositoryNotFoundError: 404"],
    }
    conditions = [
        condition("Accepted", "True", "Valid"),
        condition("Ready", "False", "ModelNotFound"),
        condition("Stalled", "True", "ModelNotFound"),
        condition("Available", "False", "NoReplicaReady"),
        condition("Fits", "Unknown", "FactsMissing"),
        condition("Degraded", "True", "NameConflict"),
    ]
    api.objects[f"{SERVICES}/chat"] = service(conditions=conditions, failure=failure)
    screen = (await llmservice.within("status", "chat")).out
    for words in (
        "chat in namespace team: Ready is False: ModelNotFound",
        "ModelNotFound in pod chat-1, first seen",
        "what to do: correct spec.model.uri",
        "| RepositoryNotFoundError: 404",
        "what to do about NameConflict: ",
    ):
        assert words in screen
    told = [line for line in screen.splitlines() if line.startswith("what to do about")]
    assert len(told) == 1, "the failure's own remedy is the better one, and the others follow from it"
    (found,) = (await llmservice.within("status", "chat", "-o", "json")).json["services"]
    assert set(found["remedies"]) == {"ModelNotFound", "NoReplicaReady", "FactsMissing", "NameConflict"}


async def test_a_start_and_adapters(api: ApiServer, llmservice: Command) -> None:
    progress = {"pod": "chat-1", "phase": "Fetching", "artifact": "model", "step": "Downloading", "percent": 43}
    progress |= {"bytesPerSecond": 212_000_000, "etaSeconds": 130, "message": "4.3 of 10 GiB"}
    adapters = [{"name": "law", "loaded": True}, {"name": "med", "loaded": False, "message": "no such path"}]
    api.objects[f"{SERVICES}/chat"] = service(progress=progress, adapters=adapters)
    screen = (await llmservice.within("status", "chat")).out
    assert "pod chat-1: Fetching model Downloading, 43 %, 212 MB/s, about 2m10s left" in screen
    assert "4.3 of 10 GiB" in screen
    rows = [line.split() for line in screen.splitlines() if line.strip().startswith(("law", "med"))]
    assert rows == [["law", "yes"], ["med", "no", "no", "such", "path"]]


async def test_replicas_over_several_nodes(api: ApiServer, llmservice: Command) -> None:
    """A worker that the leader never heard of has no step."""
    members = [{"rank": 0, "pod": "chat-0", "node": "node-a", "step": "Waiting"}, {"rank": 1}]
    cause = "Rank 1 (pod chat-0-1 on node node-b): GPUOutOfMemory: No room."
    group = {"name": "chat-0", "ready": False, "restarts": 2, "cause": cause, "members": members}
    api.objects[f"{SERVICES}/chat"] = service(groups=[group])
    screen = (await llmservice.within("status", "chat")).out
    rows = [line.split() for line in screen.splitlines() if line.strip().startswith("chat-0 ")]
    assert rows == [["chat-0", "0", "chat-0", "node-a", "Waiting"], ["chat-0", "1", "-", "-", "-"]]
    assert f"chat-0: 2 restarts in the last hour; last end: {cause}" in screen


UNKNOWN = {
    "outdated": (service(generation=3), "has not reconciled the latest change"),
    "nothing measured": (service(measured=None), "nothing: the operator has not read it"),
    "why it was not measured": (service(measured={"reason": "no answer"}), "what is missing: no answer"),
    "a newer reason": (service(conditions=[condition("Ready", "False", "NewWord")]), "does not know the reason"),
    "never reconciled": (service(conditions=[], observedGeneration=-1), "is the operator running"),
}


@pytest.mark.parametrize(("found", "words"), UNKNOWN.values(), ids=UNKNOWN)
async def test_what_is_not_known_is_stated(api: ApiServer, llmservice: Command, found: Json, words: str) -> None:
    api.objects[f"{SERVICES}/chat"] = found
    assert words in (await llmservice.within("status", "chat")).out


async def test_all_services_a_line_each(api: ApiServer, llmservice: Command) -> None:
    starting = service("other", conditions=[condition("Ready", "False", "Starting")], progress={"phase": "Loading"})
    api.objects[f"{SERVICES}/other"] = starting
    header, first, second = (await llmservice.within("status")).out.splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "PROGRESS", "GPUS", "MODEL", "URL", "AGE"]
    assert first.split() == ["chat", "1/1", "RolledOut", "-", "2", "hf://org/model", "http://chat.team.svc/v1", "-"]
    assert second.split()[:4] == ["other", "1/1", "Starting", "Loading"]
    listed = (await llmservice.within("status", "-o", "json")).json
    assert [each["name"] for each in listed["services"]] == ["chat", "other"]


async def test_a_name_that_does_not_exist(api: ApiServer, llmservice: Command) -> None:
    with pytest.raises(CliError, match=r"(?s)no LLMService 'chatt'.*choose one of: chat"):
        await llmservice.within("status", "chatt")
    api.refused = {"llmservices": 404}
    with pytest.raises(CliError, match="install the operator"):
        await llmservice.within("status")


AUTOSCALED = {
    "known": (
        {"minReplicas": 1, "maxReplicas": 4, "concurrencyPerReplica": 24},
        "1 to 4 replicas, 3 desired; 24 requests",
    ),
    "not known": ({"minReplicas": 1, "maxReplicas": 4}, "1 to 4 replicas, 3 desired; requests for each not known yet"),
    "not reconciled": ({}, "- to - replicas, 3 desired"),
}


@pytest.mark.parametrize("case", AUTOSCALED)
async def test_autoscaling_on_the_screen(case: str, api: ApiServer, llmservice: Command) -> None:
    scaling, line = AUTOSCALED[case]
    found = service(effective={"scaling": scaling})
    api.objects[f"{SERVICES}/chat"] = found
    assert "autoscaling" not in (await llmservice.within("status", "chat")).out
    found["spec"]["scaling"] = {"replicas": 3, "autoscaling": {"maxReplicas": 4}}
    found["status"]["conditions"].append(condition("Autoscaled", "False", "ScalerUnavailable"))
    screen = (await llmservice.within("status", "chat")).out
    assert f"autoscaling {line}" in screen
    assert "what to do about ScalerUnavailable: See that the scaler's pods run" in screen


IDLE_LINE = "  idle        for 1h30m: the next request is held at port 12345 of the activators and starts a replica"


def at_zero(reason: str) -> Json:
    """Ready since long ago, and without a replica for an hour and a half."""
    now = datetime.now(UTC)
    stamp = (now - timedelta(minutes=90, seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [condition("Ready", "True", reason), condition("Available", "False", reason)]
    conditions[1]["lastTransitionTime"] = stamp
    return service(conditions=conditions, ready="0/0", holding={"port": 12345})


async def test_a_service_without_a_replica_says_since_when_and_where_requests_are_held(
    api: ApiServer, llmservice: Command
) -> None:
    api.objects[f"{SERVICES}/chat"] = at_zero("Idle")
    ran = await llmservice.within("status", "chat")
    assert ran.out.splitlines()[0] == "chat in namespace team: Ready is True: Idle"
    assert IDLE_LINE in ran.out.splitlines()
    found = (await llmservice.within("status", "chat", "-o", "json")).json
    assert found["services"][0]["status"]["holding"] == {"port": 12345}


@pytest.mark.parametrize("reason", ["ScaledToZero", "NoReplicaReady"])
async def test_a_service_that_is_not_idle_does_not_say_so(api: ApiServer, llmservice: Command, reason: str) -> None:
    api.objects[f"{SERVICES}/chat"] = at_zero(reason)
    assert "  idle " not in (await llmservice.within("status", "chat")).out


async def test_what_others_wrote_controls_no_terminal(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{SERVICES}/chat"]["status"]["ready"] = "1/1\x1b[2J\nforged"
    ran = await llmservice.within("status")
    assert ("\x1b" in ran.out, len(ran.out.splitlines())) == (False, 2)
