"""What one tenant does to the operator that it shares with others, all at once, with no more than the right to edit."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from localcluster.install import STAND_IN_IMAGE
from localcluster.paths import ClusterPaths
from tests.support.cluster import COLLECTIONS, JSON, Cluster
from tests.support.models import claim_folder, release_folder
from tests.support.patience import PATIENCE
from tests.support.services import idle, stand_in
from tests.support.weights import named_tensors

LIAR = Path(__file__).with_name("liar.py")
LIES = (
    *("huge number", "huge integer", "text for a number", "not a number", "lone surrogate", "deep", "wrong types"),
    *("adapters that flip", "phases that flip", "large", "not JSON", "slow", "redirect"),
    *("die deep", "die drain", "die failure"),
)
CLAIM = "hostile"
ARCHITECTURE = {
    "modelType": "llama",
    "hiddenSize": 4096,
    "intermediateSize": 14336,
    "numHiddenLayers": 32,
    "numAttentionHeads": 32,
    "numKeyValueHeads": 8,
    "vocabSize": 128256,
    "dtype": "bfloat16",
}
ALTERNATIVES = "re:" + "(.|.)" * 40 + "!"
"""A backtracking engine tries 2^40 ways for a name of 40 characters."""


def liar(lie: str) -> JSON:
    """A service whose pod answers this instead of its state."""
    name = "liar-" + lie.replace(" ", "-").lower()
    copy = {
        "name": "replace",
        "image": STAND_IN_IMAGE,
        "command": ["cp", "/liar/liar.py", "/runtime/llmservice_runtime/__main__.py"],
        "volumeMounts": [{"name": "runtime", "mountPath": "/runtime"}, {"name": "liar", "mountPath": "/liar"}],
    }
    pod = {"volumes": [{"name": "liar", "configMap": {"name": "liar"}}], "initContainers": [copy]}
    made = stand_in(name, podTemplate={"spec": pod}, adapters=ADAPTERS if lie == "adapters that flip" else [])
    made["spec"]["runtime"]["env"] = [{"name": "LIE", "value": lie}]
    return made


ADAPTERS = [{"name": f"a{number}", "uri": f"pvc://{CLAIM}/adapter-{number}"} for number in range(16)]


def config(**changes: object) -> JSON:
    """Of a Llama, but for what is hostile in it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    } | changes


CONFIGS: dict[str, JSON] = {
    "patterns": config(
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "ignore": [ALTERNATIVES] * 50,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
        }
    ),
    "layers": config(num_hidden_layers=10**9, layer_types=["full_attention"] * 3000),
    "negative": config(num_hidden_layers=-1, hidden_size=1e308, vocab_size="many"),
    "nested": config(text_config={"text_config": {"text_config": config()}}),
}


def repository(folder: Path) -> None:
    """A folder for each hostile config, with a header of weights beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    weights = named_tensors({f"model.layers.{n}.mlp.up_proj.weight": ("BF16", (1, 1)) for n in range(400)})
    for name, hostile in CONFIGS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(hostile))
        (folder / name / "model.safetensors").write_bytes(weights)


def from_repository(name: str) -> JSON:
    return idle(f"config-{name}", model={"uri": f"pvc://{CLAIM}/{name}"}, batching={"maxModelLen": None})


def with_a_huge_flag() -> JSON:
    """Accepted by the API server, and a number of ten million digits to whoever computes it."""
    return idle(
        "flag", model={"architecture": ARCHITECTURE}, runtime={"extraArgs": ["--kv-cache-memory-bytes=1e9999999"]}
    )


def large(number: int, env: list[JSON]) -> JSON:
    """As large as the API server takes."""
    made = idle(f"large-{number}", runtime={"env": env})
    made["metadata"]["annotations"] = {"example.com/note": "x" * 200_000}
    return made


@contextmanager
def editing(cluster: Cluster, namespace: str, names: list[str]) -> Iterator[None]:
    """Edits as fast as the API server answers, in one thread, until the end of the block."""
    stopping = threading.Event()
    path = f"{COLLECTIONS['llmservices']}/namespaces/{namespace}/llmservices"

    def edit(api: httpx.Client) -> None:
        number = 0
        while not stopping.wait(0.05):
            number += 1
            body = {"spec": {"drain": {"timeoutSeconds": 5 + number % 50}}}
            headers = {"Content-Type": "application/merge-patch+json"}
            api.patch(f"{path}/{names[number % len(names)]}", content=json.dumps(body), headers=headers)

    thread = threading.Thread(target=edit, args=(cluster.api,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(timeout=PATIENCE)


@contextmanager
def hostile_volume(cluster: Cluster, namespace: str) -> Iterator[None]:
    """The claim with the hostile repository in it, and the ConfigMap with the liar."""
    folder = ClusterPaths.of_this_clone().models / "hostile"
    repository(folder)
    claim_folder(cluster, namespace, CLAIM, folder)
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "liar"}, "data": {"liar.py": LIAR.read_text()}},
        namespace,
    )
    try:
        yield
    finally:
        release_folder(cluster, namespace, CLAIM)
        shutil.rmtree(folder, ignore_errors=True)
