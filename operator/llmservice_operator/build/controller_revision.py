"""The ControllerRevision: the pod template rendered for a revision key, and what was chosen for it."""

from __future__ import annotations

from llmservice_operator.api.constants import REVISION_LABEL
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.chosen import Chosen
from llmservice_operator.build.meta import Manifest, metadata

KEPT = 5
"""Number of revisions kept, the current one included."""


def controller_revision(
    llm: LLMService, *, label: str, number: int, key: str, template: Manifest, chosen: Chosen
) -> Manifest:
    """The manifest; the API server lets only `revision` be changed later."""
    meta = metadata(llm, f"{llm.name}-{label}")
    meta["labels"][REVISION_LABEL] = label
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": meta,
        "revision": number,
        "data": {"key": key, "template": template, "chosen": chosen.to_document()},
    }
