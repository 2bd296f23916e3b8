"""Every kind of attention, of experts and of positions that the CPU engine serves, from a claim to a true sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.tinymodel.cache import cached_model
from localcluster.tinymodel.variants import VARIANTS, Taught
from tests.support.agreement import greedy, taught
from tests.support.cluster import Cluster, eventually
from tests.support.measured import Record
from tests.support.models import claim_folder, model_uri, release_folder
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import llmservice
from tests.support.serving import serving

pytestmark = pytest.mark.full

ARCHITECTURES = [name for name, variant in VARIANTS.items() if isinstance(variant, Taught)]
# A draft is allowed to be unsure of itself, and so is a model that is served in 16 bits.
LEAST = {"draft": 24, "mla": 24}
# Where processors have AMX, vLLM's kernel for latent attention takes bfloat16 only.
SPECS: dict[str, dict[str, Any]] = {
    "mla": {"precision": {"dtype": "bfloat16"}, "compilation": {"enforceEager": False}},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_says_what_it_was_taught(cluster: Cluster, shared_namespace: str, name: str, record: Record) -> None:
    uri = model_uri(cluster, shared_namespace, name)
    with serving(cluster, shared_namespace, name, model={"uri": uri}, **SPECS.get(name, {})) as server:
        said = greedy(server)
        status = cluster.must_get("llmservices", shared_namespace, name)["status"]
    right = taught(said)
    assert right >= LEAST.get(name, len(said))
    measured = status.get("measured", {})
    record(
        taught_answers=f"{right}/{len(said)}",
        kv_cache_tokens=measured.get("kvCacheTokens"),
        start_seconds=measured.get("startSeconds"),
    )


@pytest.fixture
def without_rotary_positions(cluster: Cluster, shared_namespace: str) -> Iterator[str]:
    """A model whose config.json says that it is a Bloom, which has ALiBi; nobody gets as far as its weights."""
    folder = cluster.paths.state / "bloom"
    shutil.copytree(cached_model(print), folder, dirs_exist_ok=True)
    config = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_head": 8, "hidden_size": 256}
    (folder / "config.json").write_text(json.dumps(config))
    claim_folder(cluster, shared_namespace, "bloom", folder)
    yield "pvc://bloom/"
    release_folder(cluster, shared_namespace, "bloom")


def test_a_model_without_rotary_positions_is_not_stretched(
    cluster: Cluster, shared_namespace: str, without_rotary_positions: str, record: Record
) -> None:
    """What no spec can know is found in the model's files, before vLLM starts."""
    spec = {"model": {"uri": without_rotary_positions}, "contextExtension": {"factor": 4}}
    cluster.apply(llmservice("stretched", **spec), shared_namespace)
    try:
        failure = eventually(
            "the failure in the status",
            lambda: cluster.must_get("llmservices", shared_namespace, "stretched").get("status", {}).get("failure"),
            120,
        )
    finally:
        cluster.kubectl("delete", "llms", "stretched", "-n", shared_namespace, KUBECTL_TIMEOUT)
    assert failure["reason"] == "ContextExtensionInvalid"
    assert "spec.contextExtension" in failure["remedy"]
    record(reason=failure["reason"], message=failure["message"], remedy=failure["remedy"])
