"""The claim that keeps downloaded models."""

from llmservice_operator.api.constants import cache_claim_name
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, metadata


def is_wanted(llm: LLMService) -> bool:
    """A claim of the user's own is used as it is; only a size asks for one of ours."""
    cache = llm.spec.model.cache
    return cache.size is not None and cache.claim_name is None


def holders(llm: LLMService) -> str | None:
    """Who may have the claim mounted at a time, where that is less than anybody: "one node" or "one pod"."""
    modes = set(llm.spec.model.cache.access_modes or ("ReadWriteOnce",))
    if not is_wanted(llm) or modes - {"ReadWriteOnce", "ReadWriteOncePod"}:
        return None
    return "one node" if "ReadWriteOnce" in modes else "one pod"


def cache_claim(llm: LLMService) -> Manifest:
    """NAME-cache; to be kept, it has labels but no owner."""
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
    """What the process that fetches is told of the claim; scratch space of a pod is neither verified nor pruned."""
    cache = llm.spec.model.cache
    if not cache.wanted:
        return ()
    hours = () if cache.prune_after_hours is None else (f"--prune-after-hours={cache.prune_after_hours}",)
    verify = () if cache.verify is None else (f"--verify={cache.verify.lower()}",)
    return (f"--service={llm.namespace}/{llm.name}", *hours, *verify)
