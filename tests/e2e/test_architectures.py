"""Every kind of attention, of experts and of positions that the CPU engine serves, from a claim to a true sentence."""

from __future__ import annotations

import pytest

from localcluster.tinymodel.variants import VARIANTS, Taught
from tests.support.agreement import greedy, taught
from tests.support.cluster import Cluster, eventually
from tests.support.measured import Record
from tests.support.models import model_uri
from tests.support.services import llmservice
from tests.support.serving import serving

pytestmark = pytest.mark.full

ARCHITECTURES = [name for name, variant in VARIANTS.items() if isinstance(variant, Taught)]
# A draft is allowed to be unsure of itself.
LEAST = {"draft": 24}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_says_what_it_was_taught(cluster: Cluster, shared_namespace: str, name: str, record: Record) -> None:
    uri = model_uri(cluster, shared_namespace, name)
    with serving(cluster, shared_namespace, name, model={"uri": uri}) as server:
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


def test_a_model_without_rotary_positions_is_not_stretched(
    cluster: Cluster, shared_namespace: str, record: Record
) -> None:
    """What no spec can know is found in the model's files, before vLLM starts."""
    spec = {"model": {"uri": model_uri(cluster, shared_namespace, "alibi")}, "contextExtension": {"factor": 4}}
    cluster.apply(llmservice("stretched", **spec), shared_namespace)
    try:
        failure = eventually(
            "the failure in the status",
            lambda: cluster.must_get("llmservices", shared_namespace, "stretched").get("status", {}).get("failure"),
            120,
        )
    finally:
        cluster.kubectl("delete", "llms", "stretched", "-n", shared_namespace, "--timeout=60s")
    assert failure["reason"] == "ContextExtensionInvalid"
    assert "spec.contextExtension" in failure["remedy"]
    record(reason=failure["reason"], message=failure["message"], remedy=failure["remedy"])
