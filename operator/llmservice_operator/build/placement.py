"""Where pods may run: acceptable GPU products, the accelerator's taint, and what the user asks for."""

from __future__ import annotations

from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.chosen import NOTHING, Chosen
from llmservice_operator.build.resources import accelerator_resource

_PRODUCT_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}


def tolerations(llm: LLMService) -> list[dict[str, Any]]:
    """GPU nodes are usually tainted with their resource's name, to keep other pods away."""
    resource = accelerator_resource(llm)
    own = [] if resource is None else [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    return own + [t for t in llm.spec.pod_template.spec.tolerations if t not in own]


def affinity(llm: LLMService, chosen: Chosen = NOTHING) -> dict[str, Any]:
    """The user's affinity, with the acceptable products required in every term and preferred in order.

    A planned product is the only acceptable one: on another the model or its maxModelLen may not fit.
    """
    given = llm.spec.pod_template.spec.affinity
    products = llm.spec.accelerator.products if chosen.gpu is None else (chosen.gpu,)
    label = _PRODUCT_LABELS.get(llm.spec.accelerator.type)
    if not products or label is None:
        return given
    node = given.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    # Terms are ORed, so each needs the products.
    terms = (node.get(required) or {}).get("nodeSelectorTerms") or [{}]
    is_acceptable = {"key": label, "operator": "In", "values": list(products)}
    node = node | {
        required: {
            "nodeSelectorTerms": [
                term | {"matchExpressions": [*(term.get("matchExpressions") or []), is_acceptable]} for term in terms
            ]
        }
    }
    order = _in_order(label, products)
    if order:
        node[preferred] = [*(node.get(preferred) or []), *order]
    return given | {"nodeAffinity": node}


def _in_order(label: str, products: tuple[str, ...]) -> list[dict[str, Any]]:
    """Preferences with weights that fall along the list; none for the last product."""
    step = 100 // max(1, len(products) - 1)
    return [
        {
            "weight": 100 - index * step if index * step < 100 else 1,
            "preference": {"matchExpressions": [{"key": label, "operator": "In", "values": [product]}]},
        }
        for index, product in enumerate(products[:-1])
    ]
