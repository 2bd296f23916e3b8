"""The claim that keeps downloaded models."""

from llmservice_operator.api.constants import cache_claim_name
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, metadata


def is_wanted(llm: LLMService) -> bool:
    """Whether the operator makes the claim: a size is set, and no claim of the user's."""
    cache = llm.spec.model.cache
    return cache.size is not None and cache.claim_name is None


def holders(llm: LLMService) -> str | None:
    """Who may mount the operator's claim at a time: "one node" or "one pod"; None: no claim of ours, or no limit."""
    modes = set(llm.spec.model.cache.access_modes or ("ReadWriteOnce",))
    if not is_wanted(llm) or modes - {"ReadWriteOnce", "ReadWriteOncePod"}:
        return None
    return "one node" if "ReadWriteOnce" in modes else "one pod"


def cache_claim(llm: LLMService) -> Manifest:
    """The claim NAME-cache; with retentionPolicy Retain it has no owner reference."""
    cache = llm.spec.model.cache
    spec: Manifest = {
        "accessModes": list(cache.access_modes or ("ReadWriteOnce",)),
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(llm, cache_claim_name(llm.name), owned=not cache.retained),
        "spec": spec,
    }


def fetch_options(llm: LLMService) -> tuple[str, ...]:
    """Options of the fetch container for the claim; none for scratch space, which is not verified or pruned."""
    cache = llm.spec.model.cache
    if not cache.wanted:
        return ()
    hours = () if cache.prune_after_hours is None else (f"--prune-after-hours={cache.prune_after_hours}",)
    verify = () if cache.verify is None else (f"--verify={cache.verify.lower()}",)
    return (f"--service={llm.namespace}/{llm.name}", *hours, *verify)
