"""`llmservice doctor` on endpoint pickers: what they wait for, and what the replicas send."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.doctor.facts import Finding, Level, Unread, results
from llmservice_cli.doctor.pickers import CHECKS, pickers

from tests.unit.api_server import ApiServer
from tests.unit.cli.doctor_world import HEALTHY, SYSTEM, deployment, installed_crd, namespace, service
from tests.unit.cli.test_doctor import REVIEWS, SELF
from tests.unit.cli_world import SERVICES, Command, Json

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
TOPIC = "kv@$(LLMSERVICE_POD_IP):8000@chat"
EVENTS: Json = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557", "topic": TOPIC}
POOL = service(routing={"mode": "pool"})


def replica(*words: str, block_size: str | None = "32", events: Json | None = EVENTS, **changed: Any) -> Json:
    """A pod of the service, beside whose server an injected container has flags of its own."""
    sized = [] if block_size is None else ["--block-size", block_size]
    given = [] if events is None or words else ["--kv-events-config", json.dumps(events)]
    args = ["serve", "--", *sized, *given, *words]
    containers = [{"name": "injected", "args": ["--block-size", "4096"]}, {"name": "server", "args": args}]
    meta = {"name": "chat-1", "namespace": "team", "labels": {"llmservice.dev/service": "chat"}}
    return {"metadata": meta, "spec": {"containers": containers}, "status": READY, **changed}


def picker_pod(*args: str, status: Json = READY) -> Json:
    spec = {
        "containers": [{"name": "epp", "args": list(args)}],
        "volumes": [{"name": "config", "configMap": {"name": "epp"}}, {"name": "tmp", "emptyDir": {}}],
    }
    return {"metadata": {"name": "chat-epp-1", "namespace": "team", "labels": {"app": "epp"}}, "spec": spec} | {
        "status": status
    }


def config(kind: str = "precise-prefix-cache-scorer", **parameters: Any) -> str:
    made = {"kind": "EndpointPickerConfig", "plugins": [{"type": "queue-scorer"}, {"type": kind}]}
    made["plugins"][1]["parameters"] = parameters  # type: ignore[index]
    return yaml.safe_dump(made)


ADDRESS: Json = {"metadata": {"name": "chat-epp"}, "spec": {"selector": {"app": "epp"}, "ports": [{"port": 9002}]}}


def found(text: str | None = None, *args: str, **changed: Any) -> Json:
    """A picker with this configuration in a ConfigMap."""
    configs = [] if text is None else [{"metadata": {"name": "epp"}, "data": {"config.yaml": text, "other": "x"}}]
    made = {"service": POOL, "name": "chat-epp", "port": 9002, "address": ADDRESS, "pods": (picker_pod(*args),)}
    return {**made, "configs": configs, "unread": None, **changed}


def checked(each: Json, *replicas: Json) -> list[Finding]:
    return list(pickers(replace(HEALTHY, pickers=(each,), pods=replicas or (replica(),))))


ASKED = Unread("you have no right to get configmaps", "ask")
PLACES: dict[str, tuple[Json, Level, str]] = {
    "there": (found(), Level.OK, "is there"),
    "no Service": (found(address=None), Level.PROBLEM, "chat-epp of team/chat is not there"),
    "a Service that may not be read": (found(address=None, unread=ASKED), Level.NOT_KNOWN, "no right"),
    "another port": (found(port=9999), Level.PROBLEM, "has no port 9999"),
    "no pod": (found(pods=()), Level.PROBLEM, "has no ready pod"),
    "no ready pod": (found(pods=(picker_pod(status={}),)), Level.PROBLEM, "has no ready pod"),
    "endpoints by hand": (
        found(pods=(), address={"metadata": {}, "spec": {"ports": [{"port": 9002}]}}),
        Level.OK,
        "is there",
    ),
}


@pytest.mark.parametrize(("each", "level", "evidence"), PLACES.values(), ids=PLACES)
def test_a_picker_that_is_there_or_not(each: Json, level: Level, evidence: str) -> None:
    one, *_ = checked(each)
    assert (one.level, evidence in one.evidence) == (level, True), one
    assert one.remedy or level is Level.OK


BLOCKS: Any = {"tokenProcessorConfig": {"blockSize": 64}}
COMPARED: dict[str, tuple[Json, Json, str]] = {
    "no configuration": (found(), replica(), ""),
    "of another picker": (found(config("prefix-cache-scorer", blockSize=64)), replica(events=None), ""),
    "all alike": (
        found(config(tokenProcessorConfig={"blockSize": 32}, kvEventsConfig={"topicFilter": "kv@"})),
        replica(),
        "",
    ),
    "other blocks": (found(config(**BLOCKS)), replica(), "blocks of 64 tokens, and the replicas' have 32"),
    "other blocks, as later versions name them": (
        found(config("precise-prefix-cache-producer", tokenProcessorConfig={"blockSizeTokens": 64})),
        replica(),
        "blocks of 64 tokens",
    ),
    "other blocks, as earlier versions have them": (
        found(config(indexerConfig=BLOCKS)),
        replica(),
        "blocks of 64 tokens",
    ),
    "other blocks, in an argument": (found(None, "--config-text", config(**BLOCKS)), replica(), "blocks of 64 tokens"),
    "other blocks, behind an equals sign": (
        found(None, "--config-text=" + config(**BLOCKS)),
        replica(),
        "blocks of 64 tokens",
    ),
    "blocks that are not pinned": (found(config(**BLOCKS)), replica(block_size=None), ""),
    "blocks of True": (found(config(tokenProcessorConfig={"blockSize": True})), replica(), ""),
    "no events": (found(config()), replica(events=None), "the replicas publish none"),
    "events that stay in the pod": (
        found(config()),
        replica(events={"endpoint": "inproc://kv-events"}),
        "the replicas publish none",
    ),
    "another port": (
        found(config(kvEventsConfig={"podDiscoveryConfig": {"socketPort": 5556}})),
        replica(),
        "at port 5556, and the replicas publish them at 5557",
    ),
    "the default port": (found(config()), replica(events=EVENTS | {"endpoint": "tcp://*:6000"}), "at port 5557"),
    "replicas that are to connect": (
        found(config(kvEventsConfig={"discoverPods": False, "zmqEndpoint": "tcp://*:5557"})),
        replica(),
        "waits for replicas that connect",
    ),
    "another topic": (found(config(kvEventsConfig={"topicFilter": "chat"})), replica(), "begins with 'chat'"),
    "a longer topic": (found(config(kvEventsConfig={"topicFilter": "kv@chat"})), replica(), "begins with 'kv@chat'"),
    "every topic": (found(config(kvEventsConfig={"topicFilter": ""})), replica(), ""),
    "replicas without a topic": (
        found(config()),
        replica(events={"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}),
        "whose topic does not name the replica",
    ),
    "ConfigMaps that may not be read": (found(config(), unread=ASKED), replica(), "no right to get configmaps"),
    "no YAML": (found("kind: EndpointPickerConfig\n\t{"), replica(), ""),
    "no plugins": (found("kind: EndpointPickerConfig\nplugins: all"), replica(), ""),
}


@pytest.mark.parametrize(("each", "pod", "evidence"), COMPARED.values(), ids=COMPARED)
def test_a_picker_and_the_replicas(each: Json, pod: Json, evidence: str) -> None:
    there, *differing = checked(each, pod)
    assert there.level is Level.OK
    assert [evidence in one.evidence for one in differing] == ([True] if evidence else []), differing
    assert all(one.level is not Level.OK and one.remedy for one in differing)


FLAG = "--kv-events-config"
ENABLED = {"enable_kv_cache_events": True, "topic": TOPIC}
BY_ARGUMENT: dict[str, tuple[Json, str]] = {
    "two words": (replica(FLAG, json.dumps(EVENTS)), ""),
    "one word": (replica(f"{FLAG}={json.dumps(EVENTS)}"), ""),
    "an abbreviation with underscores": (replica("--kv_ev", json.dumps(EVENTS)), ""),
    "dotted": (replica(f"{FLAG}.enable_kv_cache_events=true", f"{FLAG}.topic", TOPIC), ""),
    "dotted after the whole": (replica(FLAG, json.dumps(EVENTS), f"{FLAG}.endpoint=tcp://*:5557"), "publish none"),
    "vLLM's endpoint": (replica(events=ENABLED), ""),
    "every address": (replica(events=ENABLED | {"endpoint": "tcp://[::]:5557"}), ""),
    "an address to which vLLM connects": (
        replica(events=ENABLED | {"endpoint": "tcp://0.0.0.0:5557"}),
        "asks each replica for KV events, and these connect to tcp://0.0.0.0:5557",
    ),
    "not enabled": (replica(events=EVENTS | {"enable_kv_cache_events": False}), "publish none"),
    "not said to be enabled": (replica(f"{FLAG}.endpoint=tcp://*:5557"), "publish none"),
    "no publisher": (replica(events=EVENTS | {"publisher": "null"}), "publish none"),
    "another topic": (replica(events=EVENTS | {"topic": "mine"}), "whose topic does not name the replica"),
}


@pytest.mark.parametrize(("pod", "evidence"), BY_ARGUMENT.values(), ids=BY_ARGUMENT)
def test_events_by_an_argument_of_the_service(pod: Json, evidence: str) -> None:
    by_argument = service(routing={"mode": "pool"}, runtime={"extraArgs": ["--kv-events-config={}"]})
    _, *differing = checked(found(config(), service=by_argument), pod)
    assert [evidence in one.evidence for one in differing] == ([True] if evidence else []), differing
    assert all(one.remedy.startswith("remove --kv-events-config from spec.runtime.extraArgs") for one in differing)


def test_replicas_that_connect_to_a_picker_that_waits() -> None:
    waits = config(kvEventsConfig={"discoverPods": False, "zmqEndpoint": "tcp://*:5557"})
    assert len(checked(found(waits), replica(events=EVENTS | {"endpoint": "tcp://chat-epp:5557"}))) == 1


def test_more_pickers_than_are_read_are_reported() -> None:
    facts = replace(HEALTHY, pickers=(found(),), cut=frozenset({"pickers"}))
    *_, last = results(CHECKS, facts, is_installed=True)
    assert (last.finding.level, last.finding.evidence) == (Level.NOT_KNOWN, "there are more pickers than were read")


def test_the_newest_replica_counts() -> None:
    old = replica(events=None, metadata=replica()["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"})
    new = replica(metadata=replica()["metadata"] | {"creationTimestamp": "2026-01-01T00:01:00Z"})
    assert len(checked(found(config()), new, old)) == 1


HOSTILE = {
    "a number of many digits": "blockSize: 0x" + "f" * 5000,
    "aliases of aliases": "&a [x, x]\n" + "".join(f"  {n}: &a{n} [{', '.join(['*a'] * 9)}]\n" for n in range(2)),
    "a deep one": "[" * 5000,
    "one that libyaml's composer does not survive": "x: " + "[" * 25_000 + "]" * 25_000,
    "what is to be true or false": "x: !!bool foo",
}


@pytest.mark.parametrize("tokens", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_configuration_is_passed_over(tokens: str) -> None:
    text = f"kind: EndpointPickerConfig\nplugins:\n- type: precise-prefix-cache-scorer\n  parameters:\n    {tokens}"
    there, *differing = checked(found(text))
    assert (there.level, differing) == (Level.OK, [])


@given(st.text(max_size=200))
def test_any_text_is_read_or_passed_over(text: str) -> None:
    assert checked(found("kind: EndpointPickerConfig\nplugins:\n- " + text))


NAMES = ("blockSize", "blockSizeTokens", "topicFilter", "discoverPods", "podDiscoveryConfig", "socketPort")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(NAMES), each),
    max_leaves=10,
)


@given(VALUES, VALUES, VALUES)
def test_any_values_are_read_or_passed_over(tokens: Any, events: Any, indexer: Any) -> None:
    parameters = {"tokenProcessorConfig": tokens, "kvEventsConfig": events, "indexerConfig": indexer}
    assert checked(found(config(**parameters)))


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    """A cluster with the operator, and a service that is a pool."""
    at = "/api/v1/namespaces/team"
    api_server.answers = {
        "/version": {"gitVersion": "v1.34.2"},
        f"POST {REVIEWS}": {"status": {"allowed": True}},
        f"POST {SELF}": {"metadata": {}, "status": {}},
    }
    api_server.objects = {
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmservices.llmservice.dev": installed_crd(),
        f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/llmservice-operator": deployment(),
        at: namespace(),
        f"{SERVICES}/chat": POOL,
        f"{at}/pods/chat-1": replica(),
        f"{at}/pods/chat-epp-1": picker_pod(),
        f"{at}/services/chat-epp": ADDRESS,
        f"{at}/configmaps/epp": {
            "metadata": {"name": "epp", "namespace": "team"},
            "data": {"config.yaml": config(**BLOCKS)},
        },
    }
    return api_server


async def about_pickers(llmservice: Command) -> list[Json]:
    ran = await llmservice.within("doctor", "-o", "json")
    return [each for each in ran.json["findings"] if each["check"] == "endpoint pickers"]


async def test_a_picker_of_the_cluster_is_found_by_its_service(api: ApiServer, llmservice: Command) -> None:
    there, differing = await about_pickers(llmservice)
    assert (there["level"], differing["level"]) == ("ok", "warning")
    assert "counts blocks of 64 tokens, and the replicas' have 32" in differing["evidence"]


async def test_without_a_right_the_rest_is_known(api: ApiServer, llmservice: Command) -> None:
    api.answers["/api/v1/namespaces/team/configmaps/epp"] = 403
    there, compared = await about_pickers(llmservice)
    assert there["level"] == "ok"
    assert (compared["level"], "no right to get configmaps" in compared["evidence"]) == ("not known", True)
