"""Claims of devices (resource.k8s.io/v1): those that users describe, and one that the operator writes from the plan.

A ResourceClaimTemplate cannot change: the name of the operator's has a hash of its content, and the revision records
both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_api.base import cel_list
from llmservice_api.constants import RESOURCE_CLAIM_TEMPLATE
from llmservice_api.service import LLMService
from llmservice_planner.pick import ClaimNeed

from llmservice_operator.manifests.meta import Manifest, digest, metadata

Json = Mapping[str, Any]

CLAIM = "gpus"
"""The name of the operator's own claim in the pod, and of its request."""


def resource_claims(llm: LLMService, template: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Claims of devices: those of the pod, and what of them the server gets. `template`: of the operator's own."""
    if llm.spec.accelerator.claim is not None:
        return [{"name": CLAIM, "resourceClaimTemplateName": template}], [{"name": CLAIM}]
    asked = llm.spec.accelerator.resource_claims or ()
    of_pod = [{"name": c.name, "resourceClaimTemplateName": c.resource_claim_template_name} for c in asked]
    return of_pod, [{"name": c.name} | ({} if c.request is None else {"request": c.request}) for c in asked]


def driver(llm: LLMService) -> str:
    """Of the devices that the operator claims, and the domain of their attributes."""
    accelerator = llm.spec.accelerator
    stated = None if accelerator.claim is None else accelerator.claim.driver
    return stated or ("gpu.amd.com" if accelerator.type == "amd" else "gpu.nvidia.com")


def device_count(llm: LLMService) -> int:
    """Devices of one pod."""
    claim, gpus = llm.spec.accelerator.claim, llm.spec.parallelism.accelerators_of_node
    return gpus if claim is None or claim.count is None else claim.count


def written_claim(llm: LLMService, need: ClaimNeed | None = None) -> dict[str, Any] | None:
    """Name and content of the ResourceClaimTemplate, recorded with the revision; None without `accelerator.claim`."""
    asked = llm.spec.accelerator.claim
    if asked is None:
        return None
    exactly: Manifest = {
        "deviceClassName": asked.device_class,
        "allocationMode": "ExactCount",
        "count": device_count(llm),
    }
    if expression := _selector(driver(llm), need or ClaimNeed()):
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    devices: Manifest = {"requests": [{"name": CLAIM, "exactly": exactly}]}
    if asked.match_attribute is not None:
        devices["constraints"] = [{"requests": [CLAIM], "matchAttribute": asked.match_attribute}]
    spec = {"devices": devices}
    return {"name": f"{llm.name}-{digest(spec)}", "spec": spec}


def _selector(domain: str, need: ClaimNeed) -> str:
    """CEL; empty: any device of the class. What a device does not publish is asked for first, since reading it would
    end the scheduling of the pod with an error."""
    conditions = []
    if need.gib is not None:
        memory = f"device.capacity['{domain}'].memory.compareTo(quantity('{need.gib}Gi')) >= 0"
        conditions += [f"'memory' in device.capacity['{domain}']", memory]
    if need.excluded:
        name = f"device.attributes['{domain}'].productName in {cel_list(need.excluded)}"
        conditions.append(f"!('productName' in device.attributes['{domain}'] && {name})")
    return " && ".join(conditions)


def claim_template(llm: LLMService, recorded: Json) -> Manifest:
    """The ResourceClaimTemplate of a revision."""
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATE.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATE.kind,
        "metadata": metadata(llm, str(recorded["name"])),
        "spec": {"spec": recorded["spec"]},
    }


def claimed_templates(template: Json) -> set[str]:
    """Names of the ResourceClaimTemplates of a pod template, which may be a record that others wrote."""
    spec = template.get("spec")
    claims = spec.get("resourceClaims") if isinstance(spec, Mapping) else None
    found = (each for each in (claims if isinstance(claims, list) else ()) if isinstance(each, Mapping))
    return {str(each.get("resourceClaimTemplateName")) for each in found}
