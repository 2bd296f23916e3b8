"""The ControllerRevision: the pod template that was rendered under a key, and what was chosen at the time."""

from __future__ import annotations

from llmservice_operator.api.constants import REVISION_LABEL
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.chosen import Chosen
from llmservice_operator.build.meta import Manifest, metadata

KEPT = 5
"""How many are kept, the current one included."""


def controller_revision(
    llm: LLMService, *, label: str, number: int, key: str, template: Manifest, chosen: Chosen
) -> Manifest:
    """`data` can never be changed, `revision` can."""
    meta = metadata(llm, f"{llm.name}-{label}")
    meta["labels"][REVISION_LABEL] = label
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": meta,
        "revision": number,
        "data": {"key": key, "template": template, "chosen": chosen.to_document()},
    }
