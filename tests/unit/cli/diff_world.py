"""A cluster of one LLMService that is rolled out, which takes no write, and `llmservice diff` against it."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from aiohttp import web
from llmservice_cli.render.decided import new
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.options import version

from tests.unit.api_server import RESOURCES, ApiServer
from tests.unit.cli_world import Command, Json, Ran
from tests.unit.decide_world import World

IMAGE = "vllm:v0.32.0"
SPEC = {
    "model": {"uri": "file:///models/tiny"},
    "accelerator": {"type": "cpu"},
    "runtime": {"image": IMAGE},
    "batching": {"maxNumSeqs": 8},
    "scaling": {"replicas": 2},
}
SETTINGS = Settings(operator_image="llmservice-operator:1", image_pull_policy="IfNotPresent")
LABELS = {"app.kubernetes.io/name": "llmservice-operator", "helm.sh/chart": "llmservice-operator-0.1.0"}


def manifest(**changes: Any) -> Json:
    metadata = {"name": "x", "namespace": "team-a"}
    spec = copy.deepcopy(SPEC) | changes
    return {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "metadata": metadata, "spec": spec}


class Cluster(ApiServer):
    """The objects of `world`, and more of them."""

    world: World
    more: list[Json]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.method == "GET", "nothing is written"
        pods = [pod | {"kind": "Pod"} for pod in self.world.pods.values()]
        parents = [self.world.obj] if self.world.obj else []
        everything = [*parents, *self.world.children.values(), *pods, self.endpoints(), *self.more]
        self.objects = {}
        for each in everything:
            namespace = each["metadata"].get("namespace", "team-a" if each["kind"] == "Pod" else None)
            path = RESOURCES[each["kind"]].path(namespace, each["metadata"]["name"])
            self.objects[path if path not in self.objects else f"{path}-again"] = each
        return await super().answer(request)

    def endpoints(self) -> Json:
        listed = [
            {"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "uid": pod["metadata"]["uid"]}}
            for pod in self.world.pods.values()
        ]
        metadata = {"name": "x-1", "namespace": "team-a", "uid": "uid-slice", "labels": {"llmservice.dev/service": "x"}}
        return {"kind": "EndpointSlice", "metadata": metadata, "endpoints": listed, "ports": [{}]}

    def store(self, given: Json) -> None:
        """The manifest, applied and rolled out."""
        self.world.obj["spec"] = new(given, "team-a")["spec"]
        self.roll_out()

    def roll_out(self) -> None:
        self.world.settle()
        self.world.roll_out()
        self.world.settle()

    def clear(self) -> None:
        """Nothing of the service is left."""
        self.world.obj, self.world.children, self.world.pods = {}, {}, {}


def operator_binding(namespace: str = "system") -> Json:
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    return {"kind": "ClusterRoleBinding", "metadata": {"name": "operator", "labels": LABELS}, "subjects": [subject]}


def operator_settings(namespace: str = "system", **content: Any) -> Json:
    metadata = {"name": "operator", "namespace": namespace, "labels": LABELS | {"app.kubernetes.io/version": version()}}
    settings = {"services": {"operatorImage": SETTINGS.operator_image}} | content
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"settings.yaml": yaml.safe_dump(settings)}}


def rolled_out() -> Cluster:
    made = Cluster()
    made.world, made.more = World(new(manifest(), "team-a"), settings=SETTINGS), [operator_settings()]
    made.world.obj["metadata"] |= {"uid": "uid-x", "resourceVersion": "1"}
    made.roll_out()
    return made


class Diff:
    """`llmservice diff` of a manifest."""

    def __init__(self, api: Cluster, llmservice: Command) -> None:
        self.api, self.llmservice = api, llmservice

    async def __call__(self, given: Json, *words: str) -> Ran:
        return await self.llmservice.within("diff", "-f", self.llmservice.manifest(given), *words)

    async def service(self, given: Json, *words: str) -> tuple[int, Json]:
        """The exit code, and what the JSON has of the service."""
        ran = await self(given, "-o", "json", *words)
        (service,) = ran.json["services"]
        return ran.code, service


def actions(service: Json) -> dict[str, str]:
    """By kind, without what is unchanged."""
    return {each["kind"]: each["action"] for each in service["objects"] if each["action"] != "unchanged"}


def condition(service: Json, kind: str) -> Json:
    (found,) = (each for each in service["conditions"] if each["type"] == kind)
    only: Json = found
    return only
