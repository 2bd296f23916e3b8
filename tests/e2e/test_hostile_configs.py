"""Configurations and numbers that are made to keep the operator busy: each is told of, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from localcluster.tinymodel.cache import cached_model
from tests.e2e.conftest import make_namespace
from tests.e2e.test_model_sources import BRIDGE
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.operator import operator_metrics, operator_pods
from tests.support.services import idle

HOSTILE, NEIGHBOUR = "e2e-hostile-configs", "e2e-hostile-configs-neighbour"
TOLD_WITHIN = 120.0
"""A Job's pod looks at the model first."""
EDITED_WITHIN = 30.0


def ignoring(*patterns: str) -> JSON:
    return {"quantization_config": {"quant_method": "compressed-tensors", "ignore": list(patterns)}}


CONFIGS: Mapping[str, tuple[JSON, str]] = {
    "alternatives": (ignoring("re:" + "(.|.)" * 60 + "!"), ""),
    "quantifiers": (ignoring("re:(a+)+$", "re:" + ".*" * 100 + "!"), ""),
    "look-ahead": (ignoring(r"re:model\.(?!layers)"), "pattern that is not read"),
    "layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "predictions": ({"num_nextn_predict_layers": 10**12}, "num_nextn_predict_layers"),
    "widths": ({"num_hidden_layers": 1024, "intermediate_size": list(range(1, 1025))}, "different layers"),
}
"""What is changed in a good config.json, and what is said of it; nothing where it can be planned with."""
SPECS: Mapping[str, JSON] = {
    "kv-bytes": {"runtime": {"extraArgs": ["--kv-cache-memory-bytes=1e9999999"]}},
    "kv-space": {"runtime": {"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "9" * 5000}]}},
    "limit": {"runtime": {"resources": {"limits": {"memory": "1e9999999"}}}},
}
FACTS: JSON = {
    "numHiddenLayers": 8,
    "hiddenSize": 256,
    "numAttentionHeads": 8,
    "vocabSize": 4096,
    "intermediateSize": 1024,
    "maxPositionEmbeddings": 2048,
}


@pytest.fixture(scope="module")
def hub(cluster: Cluster) -> Iterator[Hub]:
    files = Repo.of_folder(cached_model(print)).files
    good = json.loads(files["config.json"])
    repos = {
        f"team/{name}": Repo({**files, "config.json": json.dumps(good | change).encode()})
        for name, (change, _) in CONFIGS.items()
    }
    hub = Hub(repos, {})
    with ExitStack() as stack:
        stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
        for namespace in (HOSTILE, NEIGHBOUR):
            make_namespace(cluster, namespace)
            stack.callback(cluster.kubectl, "delete", "namespace", namespace, "--wait=false")
        yield hub


def service(name: str, **spec: Any) -> JSON:
    return idle(name, fitPolicy="Warn", batching={"maxModelLen": None}, **spec)


def observed(cluster: Cluster, namespace: str, name: str) -> bool:
    found = cluster.must_get("llmservices", namespace, name)
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])


def restarts(cluster: Cluster) -> dict[str, int]:
    return {
        pod["metadata"]["name"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
        for pod in operator_pods(cluster)
    }


def test_each_is_told_of_and_no_neighbour_waits(cluster: Cluster, hub: Hub) -> None:
    before = restarts(cluster)
    cluster.apply(service("calm", model={"architecture": FACTS}), NEIGHBOUR)
    eventually("the neighbour's first status", lambda: observed(cluster, NEIGHBOUR, "calm"), EDITED_WITHIN)
    endpoint = {"env": [{"name": "HF_ENDPOINT", "value": hub.url}]}
    for name in CONFIGS:
        cluster.apply(service(name, model={"uri": f"hf://team/{name}"}, runtime=endpoint), HOSTILE)
    for name, spec in SPECS.items():
        cluster.apply(service(name, model={"architecture": FACTS}, **spec), HOSTILE)

    for sequences in range(3, 8):
        change = {"spec": {"batching": {"maxNumSeqs": sequences}}}
        cluster.patch("llmservices", NEIGHBOUR, "calm", change)
        eventually("the neighbour's edit", lambda: observed(cluster, NEIGHBOUR, "calm"), EDITED_WITHIN)

    for name, (_, words) in CONFIGS.items():

        def is_told(name: str = name, words: str = words) -> bool:
            fits = cluster.condition(HOSTILE, name, "Fits") or {"message": "", "reason": "InspectingModel"}
            return fits["reason"] != "InspectingModel" and words in fits["message"]

        eventually(f"what is said of {name}", is_told, TOLD_WITHIN)
    for name in SPECS:
        eventually(f"a status of {name}", partial(observed, cluster, HOSTILE, name), TOLD_WITHIN)
    assert restarts(cluster) == before


def test_configurations_are_read_by_the_process_of_the_image(cluster: Cluster, hub: Hub) -> None:
    """As a user without a home, on a file system that cannot be written, under the runtime's seccomp profile."""
    endpoint = {"env": [{"name": "HF_ENDPOINT", "value": hub.url}]}
    cluster.apply(service("read", model={"uri": "hf://team/alternatives"}, runtime=endpoint), HOSTILE)
    cluster.wait_condition(HOSTILE, "read", "Fits", "True", timeout=TOLD_WITHIN)
    families = {family.name: family for family in text_string_to_metric_families(operator_metrics(cluster))}
    results = {sample.labels["result"]: sample.value for sample in families["llmservice_config_reads"].samples}
    assert results.get("read", 0) > 0
    assert "died" not in results
