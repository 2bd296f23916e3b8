"""The Deployment: replicas, pod template and rollout strategy."""

from __future__ import annotations

from typing import Any, Literal

from llmservice_runtime import contract

from llmservice_operator.api.constants import STRATEGY_ANNOTATION
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, metadata, selector

START_CEILING_SECONDS = contract.START_CEILING_SECONDS
"""Limit of the startup probe. The supervisor enforces the start budget and reports why it gave up."""
_PULL_ALLOWANCE_SECONDS = 1800

Strategy = Literal["Surge", "Replace", "Recreate"]
USUAL: Strategy = "Surge"

_STRATEGIES: dict[Strategy, Any] = {
    "Surge": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    "Replace": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "Recreate": {"type": "Recreate"},
}


def deployment(llm: LLMService, template: Manifest, strategy: Strategy) -> Manifest:
    """The manifest. `template` is the recorded one: changes that need no restart leave it as it is."""
    meta = metadata(llm, llm.name)
    if llm.spec.rollout.strategy == "Auto" and strategy != USUAL:
        meta["annotations"] = {STRATEGY_ANNOTATION: strategy}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": llm.spec.scaling.replicas,
            "selector": {"matchLabels": selector(llm)},
            "strategy": _STRATEGIES[strategy],
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": progress_deadline_seconds(llm),
            "template": template,
        },
    }


def progress_deadline_seconds(llm: LLMService) -> int:
    """The spec's deadline, else the longest start and half an hour to pull the image."""
    return llm.spec.rollout.progress_deadline_seconds or START_CEILING_SECONDS + _PULL_ALLOWANCE_SECONDS
