"""Which edits restart a model, and which do not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from llmservice_api.service import LLMService, parse_spec
from llmservice_operator.manifests.revision import recorded_spec, revision_key, with_recorded_fields

from tests.contract.manifests import manifest
from tests.unit.api.test_schema import OURS
from tests.unit.decide_world import an_llmservice, spec
from tests.unit.operator.test_build_deployment import render

Json = dict[str, Any]


def key(**sections: object) -> str:
    return revision_key(LLMService.from_object(an_llmservice(spec(**sections))).spec)


HF = "hf://Qwen/Qwen2.5-7B-Instruct"
WITHOUT_RESTART = (
    *(
        "paused",
        "fitPolicy",
        "scaling",
        "rollout",
        "drain",
        "endpoint.port",
        "endpoint.gateway",
        "routing",
        "accelerator.memory",
    ),
    *("batching.kvEvents.port", "batching.kvEvents.replayPort"),  # without `enabled`, there are no events
    *("model.architecture", "model.cache.storageClassName", "model.cache.accessModes"),
    *("model.cache.retentionPolicy", "model.cache.verify", "model.cache.pruneAfterHours"),
)
# The examples of these are what the spec has without them.
DEFAULT_STRATEGY = {"spec.model.uri", "spec.accelerator.type"}
# These need another field, which restarts the pods; SAME_PODS has them.
BESIDE = {"spec.startCache.storageClassName", "spec.startCache.accessModes"}
EXAMPLES = {
    path.removeprefix("spec."): part["example"]
    for path, part in OURS.items()
    if path.startswith("spec.")
    and "example" in part
    and not re.search(r"[\[{]|Ref\.", path)
    and path not in DEFAULT_STRATEGY | BESIDE
}


def with_example(path: str) -> Json:
    """The smallest spec with one field at its example, and what its section needs beside."""
    sections: Json = manifest("x", {path: EXAMPLES[path]})["spec"]
    needed = {
        "speculativeDecoding": {"method": "eagle", "numSpeculativeTokens": 2},
        "contextExtension": {"factor": 2},
    }
    if path.startswith("scaling.autoscaling."):
        sections["scaling"]["autoscaling"] = {"maxReplicas": 4} | sections["scaling"]["autoscaling"]
    if path.startswith("endpoint.gateway."):
        gateway = sections["endpoint"]["gateway"]
        gateway["ref"] = {"name": "public"} | gateway.get("ref", {})
    if path.startswith("accelerator.claim."):
        sections["accelerator"]["claim"] = {"deviceClass": "gpu.nvidia.com"} | sections["accelerator"]["claim"]
    return sections | {name: needed[name] | sections[name] for name in needed if name in sections}


def test_every_field_restarts_the_pods_but_for_these() -> None:
    keys = {path: key(**with_example(path)) for path in EXAMPLES}
    assert len(keys) > 120
    assert {path for path in keys if keys[path] == key()} == {p for p in keys if p.startswith(WITHOUT_RESTART)}
    specs = [parse_spec(with_example(path)).model_dump_json(exclude_defaults=True) for path in EXAMPLES]
    restarting = {spec for spec, made in zip(specs, keys.values(), strict=True) if made != key()}
    assert len({*keys.values()} - {key()}) == len(restarting), "each change has a key of its own"


DEFAULTS: list[Json] = [
    {"accelerator": {"type": "nvidia"}},
    {"precision": {"weights": "auto"}},
    {"parallelism": {"tensorParallelSize": 1}},
    {"runtime": {"extraArgs": [], "env": [], "sleepMode": False}},
    {"model": {"uri": HF, "architecture": {"positions": "rope"}, "s3": {}, "runner": "auto", "convert": "auto"}},
    {"attention": {"backend": "auto"}},
    {"compilation": {"enforceEager": False}},
    {"generation": {"defaults": {}}},
    {"adapters": []},
    {"multimodal": {"allowedMediaDomains": []}},
]


@pytest.mark.parametrize("sections", DEFAULTS, ids=str)
def test_no_restart_for_a_default_that_is_written_out(sections: Json) -> None:
    assert key(**sections) == key()


def test_no_restart_for_another_care_of_the_cache() -> None:
    small = {"uri": HF, "cache": {"size": "10Gi"}}
    kept = {"retentionPolicy": "Retain", "verify": "Hash", "pruneAfterHours": 1}
    large = {"uri": HF, "cache": {"size": "20Gi", **kept}}
    assert key(model=small) == key(model=large)


A, B = {"name": "a", "uri": "hf://a/b"}, {"name": "b", "uri": "pvc://b/b"}
SAME_PODS: list[tuple[str, Json, Json]] = [
    (
        "another claim for what a start computes",
        {"startCache": {"size": "1Gi"}},
        {"startCache": {"size": "2Gi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]}},
    ),
    ("the first adapter, prepared for", {"lora": {}}, {"adapters": [A]}),
    ("another one that is fetched", {"adapters": [A]}, {"adapters": [A, {"name": "c", "uri": "s3://bucket/c"}]}),
    ("one in the image", {"adapters": [A]}, {"adapters": [{"name": "c", "uri": "file:///c"}]}),
    ("one in a claim that is there", {"adapters": [B]}, {"adapters": [A, {"name": "c", "uri": "pvc://b/c"}, B]}),
    (
        "one in the model's claim",
        {"model": {"uri": "pvc://m/m"}, "lora": {}},
        {"model": {"uri": "pvc://m/m"}, "adapters": [{"name": "c", "uri": "pvc://m/c"}]},
    ),
    ("another order", {"adapters": [A, B]}, {"adapters": [B, A]}),
]


@pytest.mark.parametrize(("before", "after"), [row[1:] for row in SAME_PODS], ids=[row[0] for row in SAME_PODS])
def test_adapters_come_and_go_without_a_restart(before: Json, after: Json) -> None:
    assert key(**before) == key(**after)
    # The same key must mean the same pod: else an update would be pending for ever.
    assert render(**before) == render(**after)


def test_what_changes_between_values_of_a_field_has_a_key_of_its_own() -> None:
    changes: list[Json] = [
        {},
        {"model": {"uri": f"{HF}@main"}},
        {"model": {"uri": HF, "cache": {"size": "10Gi"}}},
        {"model": {"uri": HF, "cache": {"claimName": "c"}}},
        {"lora": {}},
        {"adapters": [B]},
        {"adapters": [{"name": "b", "uri": "pvc://c/b"}]},
        {"adapters": [{"name": "b", "uri": "image://b"}]},
        {"multimodal": {"allowedMediaDomains": ["*"]}},
        {"accelerator": {"type": "cpu"}},
        {"accelerator": {"type": "cpu", "memory": "2Gi"}},
    ]
    assert len({key(**change) for change in changes}) == len(changes)


def test_the_key_never_changes_by_itself() -> None:
    """A version of the operator that changed it would restart every model at once."""
    assert key() == "ca05eaf2b9"
    assert key(batching={"maxNumSeqs": 8}, accelerator={"type": "cpu"}) == "6eaa669aef"


def test_a_return_to_a_recorded_revision_keeps_what_needs_no_restart() -> None:
    reference = {"name": "s", "key": "k"}
    recorded = recorded_spec(parse_spec(spec(endpoint={"apiKeySecretRef": reference, "port": 81})))
    now = parse_spec({"model": {"uri": "hf://a/b"}, "endpoint": {"port": 90}, "scaling": {"replicas": 3}})
    back = with_recorded_fields(now, recorded)
    assert (back.model.uri, back.scaling.replicas, back.endpoint.port) == (HF, 3, 90)
    assert back.endpoint.api_key_secret_ref is not None
    assert back.endpoint.api_key_secret_ref.model_dump() == reference
