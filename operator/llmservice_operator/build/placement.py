"""Where pods may run: acceptable GPU products, the accelerator's taint, and what the user asks for."""

from __future__ import annotations

from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.chosen import NOTHING, Chosen
from llmservice_operator.build.resources import RESOURCES, accelerator_resource
from llmservice_operator.planner.room import slice_label

_PRODUCT_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}


def tolerations(llm: LLMService) -> list[dict[str, Any]]:
    """GPU nodes usually have a taint with the name of their resource, or of their vendor's GPUs whatever they offer."""
    keys = dict.fromkeys(filter(None, (accelerator_resource(llm), RESOURCES.get(llm.spec.accelerator.type))))
    own = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return own + [t for t in llm.spec.pod_template.spec.tolerations if t not in own]


def affinity(llm: LLMService, chosen: Chosen = NOTHING) -> dict[str, Any]:
    """The user's affinity, with the acceptable products required in every term and preferred in order.

    A planned product is the only acceptable one: on another the model or its maxModelLen may not fit.
    """
    given = llm.spec.pod_template.spec.affinity
    products = llm.spec.accelerator.products if chosen.gpu is None else (chosen.gpu,)
    if not products or llm.spec.accelerator.type not in _PRODUCT_LABELS:
        return given
    by_label: dict[str, list[str]] = {}
    for product in products:
        by_label.setdefault(_label(llm, product), []).append(product)
    node = given.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    # Terms are ORed, so each needs the products, and each label of products a term of its own.
    terms = (node.get(required) or {}).get("nodeSelectorTerms") or [{}]
    acceptable = [{"key": label, "operator": "In", "values": values} for label, values in by_label.items()]
    node = node | {
        required: {
            "nodeSelectorTerms": [
                term | {"matchExpressions": [*(term.get("matchExpressions") or []), each]}
                for term in terms
                for each in acceptable
            ]
        }
    }
    order = _in_order(llm, products)
    if order:
        node[preferred] = [*(node.get(preferred) or []), *order]
    return given | {"nodeAffinity": node}


def _label(llm: LLMService, product: str) -> str:
    """The node label that has this product: MIG slices with a resource of their own have one beside the card's."""
    own = slice_label(accelerator_resource(llm) or "") if "-MIG-" in product else None
    return own or _PRODUCT_LABELS[llm.spec.accelerator.type]


def _in_order(llm: LLMService, products: tuple[str, ...]) -> list[dict[str, Any]]:
    """Preferences with weights that fall along the list; none for the last product."""
    step = 100 // max(1, len(products) - 1)
    return [
        {
            "weight": 100 - index * step if index * step < 100 else 1,
            "preference": {"matchExpressions": [{"key": _label(llm, product), "operator": "In", "values": [product]}]},
        }
        for index, product in enumerate(products[:-1])
    ]
