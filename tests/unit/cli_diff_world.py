"""An API server that shows a world of one LLMService and takes no write, and the command run against it."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from llmservice_cli.app import make_parser
from llmservice_cli.render.desired import new
from llmservice_operator.build.settings import Settings
from llmservice_operator.kube.nodes import NODE
from llmservice_operator.kube.resources import ALL
from llmservice_operator.options import version

from tests.support.kubeconfig import kubeconfig

from .decide_world import World

IMAGE = "vllm:v0.32.0"
SPEC = {
    "model": {"uri": "file:///models/tiny"},
    "accelerator": {"type": "cpu"},
    "runtime": {"image": IMAGE},
    "batching": {"maxNumSeqs": 8},
    "scaling": {"replicas": 2},
}
SETTINGS = Settings(operator_image="llmservice-operator:1", image_pull_policy="IfNotPresent")
INSPECTED_FIRST = "no restart yet (InspectingModel): the model is inspected first, and --config shows what follows"
PATHS = {f"/{resource.plural}": resource.kind for resource in (*ALL, NODE)}
PATHS["/clusterrolebindings"] = "ClusterRoleBinding"


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "x", "namespace": "team-a"},
        "spec": copy.deepcopy(SPEC) | changes,
    }


@dataclass
class Api:
    """Lists and gets of a world; `denied` are kinds that the user may not read, `missing` have no CRD."""

    world: World
    objects: list[dict[str, Any]] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.Response:
        assert request.method == "GET", "nothing is written"
        collection, _, name = request.path.rpartition("/")
        if f"/{name}" in PATHS:
            collection, name = request.path, ""
        kind = PATHS[f"/{collection.rpartition('/')[2]}"]
        if kind in self.missing:
            return self.status(404, "the server could not find the requested resource")
        if kind in self.denied:
            return self.status(403, f'cannot list resource "{kind}"')
        found = [each for each in self.everything() if each["kind"] == kind]
        if name:
            named = next((each for each in found if each["metadata"]["name"] == name), None)
            return self.status(404, "not found") if named is None else web.json_response(named)
        selector = request.query.get("labelSelector", "")
        return web.json_response({"items": [each for each in found if self.is_selected(each, selector)]})

    def everything(self) -> list[dict[str, Any]]:
        pods = [pod | {"kind": "Pod"} for pod in self.world.pods.values()]
        parents = [self.world.obj] if self.world.obj else []
        return [*parents, *self.world.children.values(), *pods, self.endpoints(), *self.objects]

    def endpoints(self) -> dict[str, Any]:
        listed = [
            {"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "uid": pod["metadata"]["uid"]}}
            for pod in self.world.pods.values()
        ]
        labels = {"llmservice.dev/service": "x"}
        metadata = {"name": "x-1", "namespace": "team-a", "uid": "uid-slice", "labels": labels}
        return {"kind": "EndpointSlice", "metadata": metadata, "endpoints": listed, "ports": [{}]}

    @staticmethod
    def is_selected(each: dict[str, Any], selector: str) -> bool:
        label, _, value = selector.partition("=")
        return not selector or (each["metadata"].get("labels") or {}).get(label) == value

    @staticmethod
    def status(code: int, message: str) -> web.Response:
        return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def operator_binding(namespace: str = "system") -> dict[str, Any]:
    metadata = {"name": "operator", "labels": {"app.kubernetes.io/name": "llmservice-operator"}}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    return {"kind": "ClusterRoleBinding", "metadata": metadata, "subjects": [subject]}


def operator_settings(namespace: str = "system", **content: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "llmservice-operator", "app.kubernetes.io/version": version()}
    return {
        "kind": "ConfigMap",
        "metadata": {"name": "operator", "namespace": namespace, "labels": labels},
        "data": {"settings.yaml": yaml.safe_dump({"services": {"operatorImage": SETTINGS.operator_image}} | content)},
    }


@asynccontextmanager
async def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """A service that is rolled out, in the cluster of the kubeconfig."""
    world = World(new(manifest(), "team-a"), settings=SETTINGS)
    world.obj["metadata"] |= {"uid": "uid-x", "resourceVersion": "1"}
    world.settle()
    world.roll_out()
    world.settle()
    made = Api(world, [operator_settings()])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    async with TestServer(app) as server:
        path = kubeconfig(folder, namespace="team-a", server=str(server.make_url("")).rstrip("/"))
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.chdir(folder)
        yield made


def options_of(given: dict[str, Any], *words: str) -> Namespace:
    Path("x.yaml").write_text(yaml.safe_dump(given))
    arguments = ["diff", "-f", "x.yaml", *words]
    return make_parser(arguments).parse_args(arguments)


async def diff(capsys: pytest.CaptureFixture[str], given: dict[str, Any], *words: str) -> tuple[int, str]:
    options = options_of(given, *words)
    code = await options.run(options)
    return code, capsys.readouterr().out


async def told(capsys: pytest.CaptureFixture[str], given: dict[str, Any], *words: str) -> tuple[int, dict[str, Any]]:
    code, out = await diff(capsys, given, "-o", "json", *words)
    (service,) = json.loads(out)["services"]
    return code, service


def actions(service: dict[str, Any]) -> dict[str, str]:
    """By kind; what stays is left out."""
    return {each["kind"]: each["action"] for each in service["objects"] if each["action"] != "unchanged"}
