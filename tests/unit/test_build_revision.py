"""Which edits restart a model, and which do not."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.revision import revision_key

from tests.unit.decide_world import an_llmservice, spec

Json = dict[str, Any]


def key(**sections: object) -> str:
    return revision_key(LLMService.from_object(an_llmservice(spec(**sections))).spec)


HF = "hf://Qwen/Qwen2.5-7B-Instruct"
NO_RESTART: list[Json] = [
    {"paused": True},
    {"scaling": {"replicas": 5}},
    {"rollout": {"strategy": "Replace", "progressDeadlineSeconds": 100}},
    {"drain": {"timeoutSeconds": 1}},
    {"endpoint": {"port": 8080}},
    {"model": {"uri": HF, "architecture": {"numAttentionHeads": 28}}},
    {"accelerator": {"memory": "80Gi"}},
    {"accelerator": {"type": "nvidia"}},
    {"precision": {"weights": "auto"}},
    {"parallelism": {"tensorParallelSize": 1}},
    {"runtime": {"extraArgs": [], "env": []}},
]


@pytest.mark.parametrize("change", NO_RESTART, ids=str)
def test_no_restart_for(change: Json) -> None:
    assert key(**change) == key()


def test_no_restart_for_a_larger_or_kept_cache() -> None:
    small = {"uri": HF, "cache": {"size": "10Gi"}}
    large = {"uri": HF, "cache": {"size": "20Gi", "retentionPolicy": "Retain"}}
    assert key(model=small) == key(model=large)


RESTART: list[Json] = [
    {"model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct@main"}},
    {"model": {"uri": HF, "servedNames": ["a"]}},
    {"model": {"uri": HF, "trustRemoteCode": True}},
    {"model": {"uri": HF, "tokenSecretRef": {"name": "s", "key": "k"}}},
    {"model": {"uri": HF, "cache": {"size": "10Gi"}}},
    {"model": {"uri": HF, "cache": {"claimName": "c"}}},
    {"precision": {"weights": "fp8"}},
    {"parallelism": {"tensorParallelSize": 2}},
    {"batching": {"maxNumSeqs": 1}},
    {"accelerator": {"type": "cpu"}},
    {"accelerator": {"type": "cpu", "memory": "2Gi"}},
    {"accelerator": {"product": ["NVIDIA-L4"]}},
    {"endpoint": {"apiKeySecretRef": {"name": "s", "key": "k"}}},
    {"runtime": {"image": "a:v0.32.0"}},
    {"runtime": {"env": [{"name": "A", "value": "b"}]}},
    {"runtime": {"extraArgs": ["--seed=7"]}},
    {"runtime": {"imagePullSecrets": [{"name": "s"}]}},
    {"podTemplate": {"metadata": {"labels": {"a": "b"}}}},
    {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
]


def test_every_change_that_needs_a_restart_has_a_key_of_its_own() -> None:
    keys = [key(**change) for change in RESTART] + [key()]
    assert len(set(keys)) == len(keys)


def test_the_key_never_changes_by_itself() -> None:
    """A version of the operator that changed it would restart every model at once."""
    assert key() == "ca05eaf2b9"
    assert key(batching={"maxNumSeqs": 8}, accelerator={"type": "cpu"}) == "6eaa669aef"
