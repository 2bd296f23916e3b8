"""The command line as tests run it, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from llmservice_api.constants import API_VERSION, KIND
from llmservice_cli.app import parse, run, start

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
