"""The PodDisruptionBudget: node drains take one replica at a time."""

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, metadata, selector
from llmservice_operator.build.settings import Settings


def manifest(llm: LLMService, settings: Settings) -> Manifest | None:
    """maxUnavailable 1; pods that are not ready may always be evicted.

    None with one replica: a budget would block a node drain for ever.
    """
    if llm.spec.scaling.replicas <= 1:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(llm, llm.name),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(llm)},
        },
    }
