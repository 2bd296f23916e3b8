"""The command line as tests run it, in this process, and the API server that its commands talk to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from aiohttp import web
from llmservice_api.constants import API_VERSION, KIND
from llmservice_api.kinds import BY_KIND
from llmservice_cli.app import parse, run, start
from llmservice_operator.readers.nodes import NODE

Json = dict[str, Any]

LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
FACTS = {
    "numAttentionHeads": 32,
    "numKeyValueHeads": 8,
    "numHiddenLayers": 32,
    "hiddenSize": 4096,
    "vocabSize": 128256,
    "intermediateSize": 14336,
    "maxPositionEmbeddings": 131072,
}
"""The same model as spec.model.architecture."""
OTHER_KIND: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}}
SERVICES = "/apis/llmservice.dev/v1alpha1/namespaces/team/llmservices"
PODS = "/api/v1/namespaces/team/pods"
_PLURALS = {resource.plural for resource in (*BY_KIND.values(), NODE)} | {"clusterrolebindings"}


def manifest(name: str = "chat", **spec: Any) -> Json:
    """An LLMService of which only the model is given, as far as `spec` says no more."""
    spec = {"model": {"uri": "pvc://models/llama", "architecture": FACTS}} | spec
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


class Ran(NamedTuple):
    """What a command ended with, and printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        return self.err.splitlines()


@dataclass(frozen=True)
class Command:
    """`llmservice` with files in a folder of its own."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Ran:
        """As the entry point runs it."""
        try:
            code = run(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Ran(code, *self.capsys.readouterr())

    async def within(self, *words: str) -> Ran:
        """Beside servers in the same event loop. Raises CliError."""
        asked = parse(words)
        assert not isinstance(asked, int)
        code = await start(asked)
        return Ran(code, *self.capsys.readouterr())

    def config(self, **changed: Any) -> str:
        """The path of the 8B model's config.json with these keys."""
        return self.text("config.json", json.dumps({**LLAMA_8B, **changed}))

    def manifest(self, *objects: Mapping[str, Any]) -> str:
        return self.text("llmservice.yaml", yaml.safe_dump_all(objects))

    def text(self, name: str, content: str) -> str:
        (self.folder / name).write_text(content, encoding="utf-8")
        return str(self.folder / name)


@dataclass
class ApiServer:
    """Objects by their paths. `answers`, by path or "METHOD path", come before them: JSON, a text, the code of a
    refusal with or without its message, or a handler. `refused` are codes by the plural of a kind."""

    objects: dict[str, Json] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, Mapping[str, str], Any]] = field(default_factory=list)
    """(method, path, query, body)"""
    tokens: set[str] = field(default_factory=set)

    def sent(self, method: str) -> list[tuple[str, Any]]:
        """The last parts of the paths of all requests with this method, and their bodies."""
        return [(path.rpartition("/")[2], body) for done, path, _, body in self.requests if done == method]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path, dict(request.query), body))
        self.tokens.add(request.headers.get("Authorization", ""))
        found = self.answers.get(f"{request.method} {request.path}", self.answers.get(request.path))
        found = self._stored(request, body) if found is None else found
        if callable(found):
            response: web.StreamResponse = await found(request)
            return response
        if isinstance(found, str):
            return web.Response(text=found)
        if isinstance(found, int):
            found = found, f'User "me" cannot get resource "{request.path}": {found}'
        if isinstance(found, tuple):
            code, message = found
            return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
        return web.json_response(found)

    def _stored(self, request: web.Request, body: Any) -> Any:
        path = request.path
        if codes := [code for plural, code in self.refused.items() if f"/{plural}" in path]:
            return codes[0]
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            self.objects[path] = {**body, "metadata": {**body["metadata"], "uid": "uid-made"}}
        if request.method == "DELETE":
            return self.objects.pop(path, 404)
        if path.rpartition("/")[2] not in _PLURALS:
            return self.objects.get(path, 404)
        selector = request.query.get("labelSelector", "")
        items = [one for place, one in self.objects.items() if path in _collections(place)]
        return {"items": [one for one in items if _is_selected(one["metadata"].get("labels", {}), selector)]}


def _is_selected(labels: Mapping[str, str], selector: str) -> bool:
    """By `name`, `name=value` and `name in (value,value)`."""
    for name, equal, one, several in re.findall(r"([^=,() ]+)(?:(=)([^,]*)| in \(([^)]*)\))?(?:,|$)", selector):
        wanted = {one} if equal else {*several.split(",")} - {""}
        if name not in labels or (wanted and labels[name] not in wanted):
            return False
    return True


def _collections(path: str) -> tuple[str, str]:
    """Where an object is listed: in its namespace, and in all."""
    parent = path.rpartition("/")[0]
    return parent, re.sub(r"/namespaces/[^/]+", "", parent)
