"""`llmservice status`: the requests that the activators hold now, summed over their /metrics; the pages are theirs."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web
from kubeloop.resources import Key
from llmservice_activator.holding.interface import HeldRequests
from llmservice_activator.metrics import Metrics
from llmservice_activator.options import Options
from llmservice_api.holding import LastUse
from llmservice_cli.metrics import METRICS_PORT, MOST_ACTIVATORS, Count, count_of, read_counts

from tests.unit.api_server import ApiServer
from tests.unit.cli.test_status import api, at_zero, service
from tests.unit.cli_world import SERVICES, Command, Json

__all__ = ["api"]

SYSTEM = "llmservice-system"
CHAT, OTHER = Key("team", "chat"), Key("team", "chat-2")
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def page(requests: int = 0, age: float = 0.0, last: LastUse | None = None) -> str:
    """Of an activator that holds these, and more of another service."""
    metrics = Metrics()
    metrics.show_uses({CHAT: last, OTHER: LastUse(9e9, "POST", "/x")} if last is not None else {})
    held = {CHAT: HeldRequests(requests, 10 * requests, 100.0 - age)} if requests else {}
    metrics.show_held({**held, OTHER: HeldRequests(77, 1, 0.0)}, now=100.0)
    return metrics.exposition().decode()


def add(
    api: ApiServer,
    answer: Any,
    name: str = "act-1",
    namespace: str = SYSTEM,
    phase: str = "Running",
    labels: Any = None,
) -> None:
    """A pod with the chart's label, and what its metrics port answers through the API server."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    metadata = {"name": name, "namespace": namespace, "labels": labels or of_chart()}
    api.objects[f"{path}/{name}"] = {"metadata": metadata, "status": {"phase": phase}}
    api.answers[f"{path}/{name}:{METRICS_PORT}/proxy/metrics"] = answer


def of_chart(name: str = "llmservice-operator", chart: str = "llmservice-operator-0.1.0") -> dict[str, str]:
    """Labels of an activator."""
    own = {"app.kubernetes.io/name": f"{name}-activator", "app.kubernetes.io/component": "activator"}
    return {**own, "helm.sh/chart": chart}


def binding(namespace: str, name: str = "llmservice-operator") -> Json:
    labels = {"app.kubernetes.io/name": name, "helm.sh/chart": "llmservice-operator-0.1.0"}
    return {"metadata": {"name": "operator", "labels": labels}, "subjects": [{"namespace": namespace}]}


@pytest.fixture
def zero(api: ApiServer) -> ApiServer:
    """With `chat` at zero."""
    api.objects[f"{SERVICES}/chat"] = at_zero("Idle")
    return api


async def screen_of(llmservice: Command) -> list[str]:
    return [line.strip() for line in (await llmservice.within("status", "chat")).out.splitlines()]


async def found_of(llmservice: Command) -> Json:
    found: Json = (await llmservice.within("status", "chat", "-o", "json")).json["services"][0]
    return found


async def test_held_requests_are_summed_over_the_activators(zero: ApiServer, llmservice: Command) -> None:
    add(zero, page(3, age=4.26))
    add(zero, page(9, age=75.0), "act-2")
    add(zero, page(500), "act-3", phase="Succeeded")
    assert "held        12, the oldest for 1m15s (activators: 2)" in await screen_of(llmservice)
    assert (await found_of(llmservice))["held"] == {"requests": 12, "oldestSeconds": 75.0, "activators": 2}


async def test_the_last_use_is_the_latest_that_an_activator_knows(zero: ApiServer, llmservice: Command) -> None:
    now = time.time()
    add(zero, page(last=LastUse(now - 200, "POST", "/v1/chat/completions")))
    add(zero, page(last=LastUse(now - 9000, "POST", "/v1/embeddings")), "act-2")
    add(zero, page(), "act-3")
    (line,) = [line for line in await screen_of(llmservice) if line.startswith("last use")]
    assert re.fullmatch("last use    3m2[0-9]s ago, POST /v1/chat/completions", line)
    found = (await found_of(llmservice))["lastUse"]
    assert (found["method"], found["path"]) == ("POST", "/v1/chat/completions")
    assert abs(datetime.fromisoformat(found["at"]).timestamp() - now + 200) < 2


LAST = "llmservice_activator_last_use_timestamp_seconds"
OF_CHAT = 'namespace="team",service="chat"'
LAST_USES = {
    "a path that is none of vLLM's": (
        page(last=LastUse(1.0, "PUT", "")),
        r"last use    [0-9]+d.* ago, PUT to another path",
    ),
    "of the time to come": (page(last=LastUse(9e9, "PUT", "/x")), "last use    0s ago, PUT /x"),
    "an activator of an earlier version": (page(), ""),
    "no method": (page() + f'{LAST}{{{OF_CHAT},path="/x"}} 7\n', ""),
    "escapes": (page() + f'{LAST}{{{OF_CHAT},method="POST",path="/\x1b[2J"}} 7\n', ""),
    "long": (page() + f'{LAST}{{{OF_CHAT},method="POST",path="/{"x" * 99}"}} 7\n', ""),
    "no time": (page() + f'{LAST}{{{OF_CHAT},method="POST",path="/x"}} NaN\n', ""),
    "a time without end": (page() + f'{LAST}{{{OF_CHAT},method="POST",path="/x"}} +Inf\n', ""),
    "before all times": (page() + f'{LAST}{{{OF_CHAT},method="POST",path="/x"}} -1\n', ""),
}


@pytest.mark.parametrize("case", LAST_USES)
async def test_a_last_use_that_is_not_understood_is_absent(case: str, zero: ApiServer, llmservice: Command) -> None:
    answer, expected = LAST_USES[case]
    add(zero, answer)
    lines = await screen_of(llmservice)
    assert "held        none (activators: 1)" in lines
    found = [line for line in lines if line.startswith("last use")]
    assert len(found) == bool(expected)
    assert all(re.fullmatch(expected, line) for line in found)
    assert ("lastUse" in await found_of(llmservice)) == bool(expected)


async def test_a_release_with_another_name_and_another_chart(zero: ApiServer, llmservice: Command) -> None:
    add(zero, page(3, age=2.0), "short-1", "mine", labels=of_chart("short"))
    add(zero, page(500), "activator-1", "knative-serving", labels=of_chart("knative", "knative-serving-1.2.0"))
    add(zero, page(500), "activator-2", "mine", labels=of_chart("other", "llmservice-operator-extras-1.0.0"))
    assert "held        3, the oldest for 2s (activators: 1)" in await screen_of(llmservice)
    zero.objects[f"{BINDINGS}/operator"] = binding("mine", "short")
    assert "held        3, the oldest for 2s (activators: 1)" in await screen_of(llmservice)


async def test_none_is_held(zero: ApiServer, llmservice: Command) -> None:
    add(zero, page())
    assert "held        none (activators: 1)" in await screen_of(llmservice)
    assert (await found_of(llmservice))["held"] == {"requests": 0, "oldestSeconds": 0.0, "activators": 1}


async def test_a_service_that_never_holds_asks_no_activator(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{SERVICES}/chat"] = service()
    add(api, page(3))
    assert not any(line.startswith("held") for line in await screen_of(llmservice))
    assert not {"held", "heldUnread"} & set(await found_of(llmservice))
    assert not any(SYSTEM in path or path == "/api/v1/pods" for _, path, _, _ in api.requests)


async def test_without_the_right_to_list_pods_everywhere_the_usual_namespace_is_asked(
    zero: ApiServer, llmservice: Command
) -> None:
    zero.answers["/api/v1/pods"] = 403
    add(zero, page(3))
    assert "held        3, the oldest for 0s (activators: 1)" in await screen_of(llmservice)


async def test_only_pods_where_an_operator_is_installed_count(zero: ApiServer, llmservice: Command) -> None:
    zero.objects[f"{BINDINGS}/operator"] = binding("system")
    add(zero, page(3), namespace="system")
    add(zero, page(500), namespace="team-b")
    assert (await found_of(llmservice))["held"]["requests"] == 3


async def test_of_many_pods_with_the_label_the_usual_ones_are_asked_and_the_others_are_named(
    zero: ApiServer, llmservice: Command
) -> None:
    """Anybody may have such pods, and who installed the operator may be unknown."""
    add(zero, page(3))
    for number in range(MOST_ACTIVATORS):
        add(zero, page(), f"pod-{number}", namespace="a-tenant")
    held = (await found_of(llmservice))["held"]
    assert (held["requests"], held["activators"], len(held["unread"])) == (3, MOST_ACTIVATORS, 1)
    assert "held        at least 3, " in "\n".join(await screen_of(llmservice))


async def test_where_was_looked_is_named(zero: ApiServer, llmservice: Command) -> None:
    zero.answers["/api/v1/pods"] = 403
    (line,) = [line for line in await screen_of(llmservice) if line.startswith("held")]
    assert f"runs in namespace {SYSTEM}; listing pods elsewhere is not allowed" in line


RIGHTS: dict[str, tuple[dict[str, Any], str]] = {
    "no pods": (
        {f"/api/v1/namespaces/{SYSTEM}/pods": 403, "/api/v1/pods": 403},
        f"needs list pods in namespace {SYSTEM}, or",
    ),
    "no proxy": (
        {f"/api/v1/namespaces/{SYSTEM}/pods/act-1:{METRICS_PORT}/proxy/metrics": 403},
        f"needs get pods/proxy in namespace {SYSTEM}",
    ),
    "no activator": ({"/api/v1/pods": {"items": []}}, "no pod of an activator runs in any namespace"),
}


@pytest.mark.parametrize("case", RIGHTS)
async def test_what_is_missing_is_named_and_the_rest_is_shown(case: str, zero: ApiServer, llmservice: Command) -> None:
    answers, why = RIGHTS[case]
    add(zero, page(3))
    zero.answers |= answers
    lines = await screen_of(llmservice)
    (line,) = [line for line in lines if line.startswith("held")]
    assert line.startswith(f"held        not readable: {why}")
    assert lines[0] == "chat in namespace team: Ready is True: Idle"
    found = await found_of(llmservice)
    assert "held" not in found
    assert found["heldUnread"].startswith(why)


async def test_an_activator_that_does_not_answer_ends_nothing(
    zero: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr("llmservice_cli.metrics.PATIENCE", 0.2)
    add(zero, page(3))
    add(zero, never, "act-2")
    lines = await screen_of(llmservice)
    assert "held        at least 3, the oldest for 0s (activators: 1)" in lines
    assert "pod act-2 is not readable: no answer within 0.2 s" in lines
    assert (await found_of(llmservice))["held"]["unread"] == {"act-2": "no answer within 0.2 s"}


def line(value: object, name: str = "requests", of: Key = CHAT) -> str:
    labels = f'namespace="{of.namespace}",service="{of.name}"'
    return f"llmservice_activator_held_{name}{{{labels}}} {value}\n"


HOSTILE = {
    "another page": ("<html>held</html>", "no metric of an activator"),
    "no number": (page() + line("many"), "not understood"),
    "not finite": (page() + line("NaN"), "out of range"),
    "infinite": (page() + line("+Inf"), "out of range"),
    "negative": (page() + line(-1), "out of range"),
    "too many": (page() + line(1e30), "out of range"),
    "an age of years": (page() + line(1e9, "age_seconds"), "out of range"),
    "cut off": (page() + 'llmservice_activator_held_requests{namespace="te', "not understood"),
    "a line without a value": (page() + "llmservice_activator_held_requests\n", "not understood"),
    "too long": ((500, "x\n\x1b[2J" * 10_000), "x [2Jx"),
    "too large": (page() + "#" * (17 * 2**20), "more than 16777216 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_what_is_no_answer_of_an_activator_is_not_counted(
    case: str, zero: ApiServer, llmservice: Command
) -> None:
    answer, why = HOSTILE[case]
    add(zero, answer)
    ran = await llmservice.within("status", "chat")
    (line,) = [line.strip() for line in ran.out.splitlines() if line.strip().startswith("held ")]
    assert line.startswith("held        not readable: ")
    assert why in line
    assert len(line) < 400
    assert "\x1b" not in ran.out


def test_the_port_and_the_names_are_the_activators() -> None:
    assert Options().metrics_port == METRICS_PORT
    assert count_of(read_counts(page(3, age=2.5)), CHAT) == Count(3, 2.5)
    assert count_of(read_counts(page()), CHAT) == Count()
