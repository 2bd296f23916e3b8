"""The claims that the operator makes: for downloaded models, and for what makes a start faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmservice_operator.api.constants import cache_claim_name, start_cache_claim_name
from llmservice_operator.api.model import AccessMode
from llmservice_operator.api.service import LLMService
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.build.meta import Manifest, metadata


@dataclass(frozen=True, slots=True)
class Claim:
    """One of them."""

    name: str
    size: str
    storage_class_name: str | None
    access_modes: tuple[AccessMode, ...]
    retained: bool = False
    """It has no owner reference, and outlives the LLMService."""

    @property
    def mounted_by(self) -> str | None:
        """Who may mount it at a time: "one node" or "one pod"; None: no limit."""
        if set(self.access_modes) - {"ReadWriteOnce", "ReadWriteOncePod"}:
            return None
        return "one node" if "ReadWriteOnce" in self.access_modes else "one pod"


def claims(llm: LLMService, asked: LLMServiceSpec) -> Iterator[Claim]:
    """Those that its pods mount, and those that the spec asks for, which a rollback neither changes nor deletes."""
    mounted, wanted = ({claim.name: claim for claim in _claims(llm, spec)} for spec in (llm.spec, asked))
    yield from (mounted | wanted).values()


def _claims(llm: LLMService, spec: LLMServiceSpec) -> Iterator[Claim]:
    cache, start = spec.model.cache, spec.start_cache
    if cache.size is not None and cache.claim_name is None:
        name, modes = cache_claim_name(llm.name), tuple(cache.access_modes or ("ReadWriteOnce",))
        yield Claim(name, cache.size, cache.storage_class_name, modes, cache.retained)
    if start is not None:
        name, modes = start_cache_claim_name(llm.name), tuple(start.access_modes or ("ReadWriteOnce",))
        yield Claim(name, start.size, start.storage_class_name, modes)


def holders(llm: LLMService) -> str | None:
    """Who may mount all of the operator's claims at a time: "one node" or "one pod"; None: no limit."""
    limits = {claim.mounted_by for claim in _claims(llm, llm.spec)}
    return next((limit for limit in ("one pod", "one node") if limit in limits), None)


def manifest(llm: LLMService, claim: Claim) -> Manifest:
    """The PersistentVolumeClaim."""
    spec: Manifest = {"accessModes": list(claim.access_modes), "resources": {"requests": {"storage": claim.size}}}
    if claim.storage_class_name is not None:
        spec["storageClassName"] = claim.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(llm, claim.name, owned=not claim.retained),
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
