"""`llmservice render --for`: what an endpoint picker or Envoy AI Gateway needs, which replaces no other object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_api.constants import ENDPOINT_PICKER_PORT
from llmservice_cli.errors import ExitCode

from tests.unit.cli_world import Command, Json, Ran, manifest

FITS: Json = {
    "accelerator": {"type": "cpu"},
    "runtime": {"image": "registry.example.com/vllm-cpu:v0.32.0"},
    "batching": {"maxModelLen": 1024},
}
IMAGE = "registry.example.com/epp:v1.5.0"
EPP = ("--for", "epp", "--image", IMAGE)
AI_GATEWAY = ("--for", "envoy-ai-gateway", "--gateway", "gateways/public")
LIMIT = ("--tokens-per-minute", "1")


def service(name: str = "chat", namespace: str | None = None, /, **spec: Any) -> Json:
    made = manifest(name, **FITS | spec)
    return made if namespace is None else made | {"metadata": {"name": name, "namespace": namespace}}


def pooled(of: str = "chat", namespace: str | None = None, /, **picker: Any) -> Json:
    return service(of, namespace, routing={"mode": "pool", "endpointPicker": picker})


@dataclass(frozen=True)
class Render:
    llmservice: Command

    def __call__(self, *words: str, of: Json | list[Json]) -> Ran:
        path = self.llmservice.manifest(*(of if isinstance(of, list) else [of]))
        return self.llmservice("render", "-f", path, "-o", "json", *words)


@pytest.fixture
def render(llmservice: Command) -> Render:
    return Render(llmservice)


@pytest.mark.parametrize("number", [80, 9002, 9003, 9090, 9999])
def test_an_endpoint_picker_has_the_names_of_the_pool(number: int, render: Render) -> None:
    items = {each["kind"]: each for each in render(*EPP, of=pooled(name="mine", port=number)).json["items"]}
    assert set(items) == {"ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"}
    assert {each["metadata"]["name"] for each in items.values()} == {"mine"}
    (port,) = items["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (number, "grpc")
    pod = items["Deployment"]["spec"]["template"]
    assert items["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    assert "--pool-name=chat" in container["args"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["grpc"] == ENDPOINT_PICKER_PORT, "whichever port its Service has"
    assert len(set(ports.values())) == len(ports)
    assert f"--grpc-port={ports['grpc']}" in container["args"]
    assert {tuple(rule["verbs"]) for rule in items["Role"]["rules"]} == {("get", "list", "watch")}


OTHERS_REFUSED: dict[str, tuple[Json, tuple[str, ...], str]] = {
    "no pool": ({}, EPP, "spec.routing.mode: chat in namespace default has no pool"),
    "no image": ({"routing": {"mode": "pool"}}, ("--for", "epp"), "--image"),
    "an image alone": ({}, ("--image", "a"), "add --for epp"),
    "an image of a Gateway": ({}, ("--for", "envoy-ai-gateway", "--image", "a"), "add --for epp"),
    "no Gateway": ({}, ("--for", "envoy-ai-gateway"), "--gateway"),
    "a Gateway alone": ({}, ("--gateway", "a"), "add --for envoy-ai-gateway"),
    "a limit alone": ({}, LIMIT, "add --for envoy-ai-gateway"),
    "a limit of nobody": ({}, (*AI_GATEWAY, *LIMIT), "add --clients-by"),
    "clients without a limit": ({}, (*AI_GATEWAY, "--clients-by", "x-team"), "add --requests-per-minute"),
    "a model's config": ({}, (*EPP, "--config", "/nonexistent"), "leave --config out"),
    "the operator's settings": ({}, (*AI_GATEWAY, "--settings", "/nonexistent"), "leave --settings out"),
    "a limit of none": ({}, ("--for", "envoy-ai-gateway", "--gateway", "a", "--tokens-per-minute", "0"), "at least 1"),
    "a route of the operator's": (
        {"endpoint": {"gateway": {"ref": {"name": "public"}}}},
        AI_GATEWAY,
        "llmservice.yaml: chat: spec.endpoint.gateway",
    ),
    "a version of vLLM that the operator does not know": (
        {"routing": {"mode": "pool"}, "runtime": {"version": "0.8.0"}, "accelerator": {"type": "nvidia"}},
        EPP,
        "llmservice.yaml: chat: spec.runtime.version: vLLM 0.8.0",
    ),
}


@pytest.mark.parametrize(("spec", "arguments", "said"), OTHERS_REFUSED.values(), ids=OTHERS_REFUSED)
def test_what_others_need_cannot_be_rendered(spec: Json, arguments: tuple[str, ...], said: str, render: Render) -> None:
    ran = render(*arguments, of=service(**spec))
    assert (ran.code, "items" in ran.out and ran.json["items"] != []) == (ExitCode.BAD_INPUT, False)
    assert said in ran.err


NEITHER_KNOWN: dict[str, Json] = {
    "the operator's default image": {"runtime": {}},
    "the revisions of the cluster": {"rollout": {"pinnedRevision": "abc"}},
}


@pytest.mark.parametrize("spec", NEITHER_KNOWN.values(), ids=NEITHER_KNOWN)
def test_what_only_the_cluster_knows_refuses_nothing(spec: Json, render: Render) -> None:
    assert render(*EPP, of=service(routing={"mode": "pool"}, **spec)).code == ExitCode.DONE


LONG = "a" * 64
WRONG_WORDS: dict[str, tuple[str, list[str], str]] = {
    "image": ("--image", ["", " ", "a b", "x\ny", "a\n", "/a", "a:", LONG * 9], "must be an image"),
    "Gateway": (
        "--gateway",
        ["", "-", ".", "a..b", "-/-", "b-/a.", "a/", "a/b/c", "A", f"{LONG}/a", "a.b/c", f"{LONG * 4}", "a\n"],
        "must be [NAMESPACE/]NAME",
    ),
    "header": ("--clients-by", ["", "a b:", "a_b", "a\n"], "the name of a header"),
    "secret of clients": (
        "--clients-by",
        [
            *("authorization", "Authorization", "X-API-Key", "x-api-key", "Proxy-Authorization", "PROXY-AUTHORIZATION"),
            *("Cookie", "cookie", "api-key", "API-KEY", "x-goog-api-key", "X-Auth-Token"),
        ],
        "name a header that the Gateway sets, such as X-Team",
    ),
    "model": (
        "--clients-by",
        ["x-ai-eg-model", "X-AI-EG-Model"],
        "name a header that the Gateway sets, such as X-Team",
    ),
}
WRONG = [(option, value, said) for option, values, said in WRONG_WORDS.values() for value in values]


@pytest.mark.parametrize(("option", "value", "said"), WRONG, ids=[f"{name} {value!r:.20}" for name, value, _ in WRONG])
def test_what_no_api_server_takes_is_no_value_of_an_option(option: str, value: str, said: str, render: Render) -> None:
    beside = {"--image": EPP[:2], "--gateway": AI_GATEWAY[:2], "--clients-by": (*AI_GATEWAY, *LIMIT)}[option]
    ran = render(*beside, option, value, of=pooled())
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert option in ran.err
    assert said in ran.err


RIGHT: dict[str, tuple[str, ...]] = {
    "an image by digest": ("--for", "epp", "--image", f"registry.example.com:5000/team/epp:v1.5.0@sha256:{'0' * 64}"),
    "an image of one word": ("--for", "epp", "--image", "epp"),
    "a Gateway with dots": ("--for", "envoy-ai-gateway", "--gateway", "a-b/public.example.com"),
    "a Gateway of the service's namespace": ("--for", "envoy-ai-gateway", "--gateway", "public"),
    "a header": (*AI_GATEWAY, *LIMIT, "--clients-by", "X-Team"),
    "a namespace": (*EPP, "-n", LONG[1:]),
    "a namespace of the default": (*EPP, "-n", ""),
}


@pytest.mark.parametrize("words", RIGHT.values(), ids=RIGHT)
def test_what_an_api_server_takes_is(words: tuple[str, ...], render: Render) -> None:
    assert render(*words, of=pooled()).code == ExitCode.DONE


@pytest.mark.parametrize("beside", [(), EPP, AI_GATEWAY], ids=["plain", "epp", "envoy-ai-gateway"])
@pytest.mark.parametrize("name", ["Bad_NS", "a.b", "-a", "a\n", LONG])
def test_a_namespace_that_cannot_be_is_wrong(name: str, beside: tuple[str, ...], render: Render) -> None:
    ran = render(*beside, "-n", name, of=pooled())
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "is no name of a namespace" in ran.err
    assert "-n NAME" in ran.err


NAME, NAMES = "spec.routing.endpointPicker.name", "spec.model.servedModelNames"
LLAMA = {"model": {"uri": "pvc://models/llama", "servedModelNames": ["llama"]}}
SQL: Json = {"lora": {}, "adapters": [{"name": "sql", "uri": "hf://example/sql"}]}
COLLISIONS: dict[str, tuple[tuple[str, ...], list[Json], list[str], list[str]]] = {
    "a picker with the name of its service": (EPP, [pooled(name="chat")], [f"chat: {NAME}: chat is"], []),
    "of the Service past a router": (EPP, [pooled(name="chat-direct")], [f"chat: {NAME}: chat-direct is"], []),
    "of a router": (EPP, [pooled(name="chat-router")], [f"chat: {NAME}: chat-router is"], []),
    "of another service": (
        EPP,
        [pooled(name="other"), service("other")],
        [f"document 1: chat: {NAME}: other is a name of the operator's objects for other in namespace default"],
        [],
    ),
    "of another service, by default": (
        EPP,
        [pooled(), pooled("chat-epp")],
        [f"chat: {NAME}: chat-epp is"],
        ["chat-epp-epp"],
    ),
    "of a service of another namespace": (
        EPP,
        [pooled(name="other"), service("other", "team")],
        [],
        ["other"],
    ),
    "two pickers of one name": (
        EPP,
        [pooled(name="shared"), pooled("other", name="shared"), pooled("third")],
        [
            f"document 1: chat: {NAME}: shared is the picker of other in namespace default",
            f"document 2: other: {NAME}: shared is the picker of chat in namespace default",
        ],
        ["third-epp"],
    ),
    "two pickers of one name in two namespaces": (
        EPP,
        [pooled(name="shared"), pooled("other", "team", name="shared")],
        [],
        ["shared", "shared"],
    ),
    "a service without a pool has no picker": (
        EPP,
        [pooled(name="shared"), service("other", routing={"endpointPicker": {"name": "shared"}})],
        [],
        ["shared"],
    ),
    "no name of a Service": (EPP, [pooled(name="a.b.c")], [f"chat: {NAME}: 'a.b.c' is no name of a Service"], []),
    "a Service's name that begins with a digit": (EPP, [pooled(name="1a")], [f"chat: {NAME}: '1a' is no name"], []),
    "a Service's name that is too long": (EPP, [pooled(name=LONG)], [f"chat: {NAME}: 'aaa"], []),
    "the longest name of a Service": (EPP, [pooled(name=LONG[1:])], [], [LONG[1:]]),
    "a service twice": (
        EPP,
        [pooled(), pooled()],
        ["document 1: chat: metadata.name: chat in namespace default", "document 2: chat: metadata.name: chat"],
        [],
    ),
    "a service twice at a Gateway": (AI_GATEWAY, [service(), service()], ["document 1: chat: metadata.name"], []),
    "one model of two services": (
        AI_GATEWAY,
        [service("a", **LLAMA), service("b", **LLAMA), pooled("c")],
        [
            f"document 1: a: {NAMES}: b in namespace default",
            f"document 2: b: {NAMES}: a in namespace default (",
        ],
        ["c"],
    ),
    "one model of two namespaces": (
        AI_GATEWAY,
        [pooled("chat", "a"), pooled("chat", "b")],
        [f"chat: {NAMES}: chat in namespace b", f"chat: {NAMES}: chat in namespace a"],
        [],
    ),
    "one model at the Gateways of two namespaces": (
        ("--for", "envoy-ai-gateway", "--gateway", "public"),
        [pooled("chat", "a"), pooled("chat", "b")],
        [],
        ["chat", "chat"],
    ),
    "an adapter of two services": (
        AI_GATEWAY,
        [service("a", **SQL), service("b", **SQL)],
        ["a: spec.adapters: b in namespace default", "b: spec.adapters: a in namespace default"],
        [],
    ),
}


@pytest.mark.parametrize(("words", "given", "refused", "made"), COLLISIONS.values(), ids=COLLISIONS)
def test_no_two_things_have_one_name(
    words: tuple[str, ...], given: list[Json], refused: list[str], made: list[str], render: Render
) -> None:
    ran = render(*words, of=given)
    kind = "Deployment" if words == EPP else "AIGatewayRoute"
    assert [each["metadata"]["name"] for each in ran.json["items"] if each["kind"] == kind] == made
    assert ran.code == (ExitCode.BAD_INPUT if refused else ExitCode.DONE)
    assert all(any(said in line for line in ran.errors) for said in refused), ran.err


def test_services_without_a_pool_are_left_out_beside_others(render: Render, llmservice: Command) -> None:
    llmservice.text("pooled.yaml", yaml.safe_dump(pooled()))
    path = llmservice.text("plain.yaml", yaml.safe_dump(service("plain", "team")))
    ran = llmservice("render", "-f", str(Path(path).parent), "-o", "json", *EPP)
    assert (ran.code, {each["metadata"]["name"] for each in ran.json["items"]}) == (ExitCode.DONE, {"chat-epp"})
    assert ran.errors == [f"note: {path}: plain in namespace team has no pool, so it gets no picker"]


def behind_a_gateway(render: Render, *arguments: str, **spec: Any) -> dict[str, Json]:
    """The specs of what is rendered, by kind."""
    items = render(*AI_GATEWAY, *arguments, of=service(**spec)).json["items"]
    return {each["kind"]: each["spec"] for each in items}


def test_envoy_ai_gateway_finds_the_service_by_the_names_of_its_model(render: Render) -> None:
    adapters = [{"name": "sql", "uri": "hf://example/sql"}]
    specs = behind_a_gateway(render, endpoint={"port": 8080}, adapters=adapters, lora={})
    assert set(specs) == {"Backend", "AIServiceBackend", "AIGatewayRoute"}
    (rule,) = specs["AIGatewayRoute"]["rules"]
    assert [match["headers"][0]["value"] for match in rule["matches"]] == ["chat", "sql"]
    assert rule["timeouts"] == {"request": "0s"}, "long answers are not cut"
    assert specs["AIGatewayRoute"]["parentRefs"][0]["namespace"] == "gateways"
    assert specs["AIServiceBackend"]["backendRef"]["name"] == rule["backendRefs"][0]["name"] == "chat"
    (endpoint,) = specs["Backend"]["endpoints"]
    assert endpoint["fqdn"] == {"hostname": "chat.default.svc.cluster.local", "port": 8080}


def test_a_rule_has_no_more_names_than_the_route_that_the_gateway_makes(render: Render) -> None:
    adapters = [{"name": f"adapter-{number}", "uri": "hf://example/sql"} for number in range(64)]
    rules = behind_a_gateway(render, adapters=adapters, lora={})["AIGatewayRoute"]["rules"]
    assert [len(rule["matches"]) for rule in rules] == [64, 1]
    assert rules[0]["backendRefs"] == rules[1]["backendRefs"]


def test_envoy_ai_gateway_leads_to_a_pool(render: Render) -> None:
    specs = behind_a_gateway(render, routing={"mode": "pool"})
    assert set(specs) == {"AIGatewayRoute"}
    assert specs["AIGatewayRoute"]["rules"][0]["backendRefs"][0]["kind"] == "InferencePool"


def test_a_limit_is_of_each_client(render: Render) -> None:
    limited = ("--requests-per-minute", "60", "--tokens-per-minute", "20000", "--clients-by", "x-team")
    specs = behind_a_gateway(render, *limited)
    requests, tokens = specs["BackendTrafficPolicy"]["rateLimit"]["global"]["rules"]
    assert (requests["limit"]["requests"], tokens["limit"]["requests"]) == (60, 20000)
    for rule in (requests, tokens):
        (selected,) = rule["clientSelectors"]
        assert selected["headers"] == [{"name": "x-team", "type": "Distinct"}]
        assert rule["shared"], "over all names of the service"
    assert specs["BackendTrafficPolicy"]["mergeType"] == "StrategicMerge"
    (cost,) = specs["AIGatewayRoute"]["llmRequestCosts"]
    assert tokens["cost"]["response"]["metadata"]["key"] == cost["metadataKey"]
    assert "cost" not in requests
    assert "llmRequestCosts" not in behind_a_gateway(render, *limited[:2], *limited[4:])["AIGatewayRoute"]
