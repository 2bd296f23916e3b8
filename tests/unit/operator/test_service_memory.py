"""What the operator keeps of one LLMService is bounded, whatever its author writes into it."""

from __future__ import annotations

import gc
import random
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from llmservice_api.errors import InvalidSpec
from llmservice_api.runtime import ENV_LENGTH
from llmservice_api.service import LONGEST_SPEC, LLMService, parse_spec, spec_text
from llmservice_operator.facts.children import ChildFacts, RevisionFacts, ServiceFacts
from llmservice_operator.facts.drift import difference
from llmservice_operator.service.watch import ParentFacts
from llmservice_operator.workload.deployment import DeploymentFacts

from tests.unit.operator.test_reconcile_fit import deployed, known
from tests.unit.reconcile_world import World, parent

KIB = 1024
MOST_OF_ONE = 768 * KIB
"""Bytes of Python objects for one of the largest LLMServices and its children."""
SERVICES = 100
Json = dict[str, Any]
RANDOM = random.Random(1)


def word(length: int) -> str:
    """Something that does not compress."""
    return RANDOM.randbytes(length // 2 + 1).hex()[:length]


def long_values() -> Json:
    """Few values, as long as they may be."""
    env = [{"name": f"A{n}", "value": word(ENV_LENGTH // 32)} for n in range(32)]
    return {"runtime": {"image": "a/vllm:v0.32.0", "env": env, "extraArgs": [f"--generation-config={word(900)}"]}}


def many_values() -> Json:
    """As many objects as fit."""
    keys = [{"key": word(2), "path": word(2)} for _ in range(60)]
    sources = [{"secret": {"name": f"a{word(2)}", "items": keys}} for _ in range(30)]
    return {"podTemplate": {"spec": {"volumes": [{"name": f"a{word(7)}", "projected": {"sources": sources}}]}}}


async def settled(spec: Json) -> World:
    """Of this spec, with as much in the metadata as fits."""
    world = known(**spec)
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": word(200 * KIB),
        "llmservice.dev/update-requested": word(50 * KIB),
    }
    fields = [{"manager": word(100), "fieldsV1": {f"f:{word(20)}": {} for _ in range(1000)}}]
    labels = {word(60): word(60) for _ in range(100)}
    world.edit(annotations=annotations, labels=labels, managedFields=fields, generation=1)
    for _ in range(3):
        await world.reconcile()
    assert deployed(world)
    return world


async def test_the_largest_that_is_accepted_is_small() -> None:
    await settled({})  # what is made once
    for spec in (long_values(), many_values(), {}):
        gc.collect()
        tracemalloc.start()
        world = await settled(spec)
        world.api.objects.clear()
        world.api.forget_requests()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < MOST_OF_ONE


def test_a_hundred_of_them_are_a_part_of_the_operators_memory() -> None:
    values = yaml.safe_load(Path("charts/llmservice-operator/values.yaml").read_text())
    limit = values["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    assert int(limit.removesuffix("Mi")) * KIB * KIB / 4 > SERVICES * MOST_OF_ONE


TOO_LONG: Json = {
    "model": {"uri": "hf://a/b"},
    "podTemplate": {"metadata": {"annotations": {f"a{n}": "x" * 4096 for n in range(17)}}},
}


@pytest.mark.parametrize("form", [dict, spec_text], ids=["as it is", "as it is kept"])
def test_a_spec_that_is_too_long_is_refused(form: Any) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(form(TOO_LONG))
    (problem,) = refused.value.problems
    assert problem.field == "spec"
    assert f"{len(orjson.dumps(TOO_LONG)):,}" in problem.message
    assert "ConfigMap" in problem.remedy


def test_nothing_is_kept_of_it_but_its_length() -> None:
    facts = ParentFacts.from_object({**parent(), "spec": TOO_LONG | {"filler": "x" * 10**6}})
    assert len(facts.obj["spec"]) < 10
    assert facts != ParentFacts.from_object(parent())


async def test_what_serves_goes_on_and_the_status_says_what_to_do() -> None:
    world = await settled({})
    world.edit(TOO_LONG)
    await world.reconcile()
    accepted = world.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert f"{LONGEST_SPEC:,}" in accepted["message"]
    assert deployed(world)


def test_values_of_the_environment_are_bounded_together() -> None:
    with pytest.raises(InvalidSpec, match="ConfigMap"):
        parse_spec({"model": {"uri": "hf://a/b"}, "runtime": {"env": [{"name": "A", "value": "x" * (ENV_LENGTH + 1)}]}})


def test_a_kept_text_is_the_spec() -> None:
    raw = parent()
    assert LLMService.from_object(ParentFacts.from_object(raw).obj).spec is LLMService.from_object(raw).spec


def a_child(cls: type[ChildFacts], **content: Any) -> ChildFacts:
    metadata = {
        "name": "chat",
        "namespace": "ns",
        "uid": "u",
        "labels": {"llmservice.dev/service": "chat"},
        "annotations": {"llmservice.dev/adapters": word(200 * KIB), "other": word(200 * KIB)},
        "managedFields": [{"manager": "x", "fieldsV1": {"f:spec": {f"f:{word(20)}": {} for _ in range(20_000)}}}],
    }
    return cls.from_object({"metadata": metadata, **content})


CHILDREN: list[Any] = [
    pytest.param(ServiceFacts, {"spec": {"externalName": word(10**6)}}, id="a Service"),
    pytest.param(DeploymentFacts, {"spec": {"template": {"spec": {"x": word(10**6)}}}}, id="a Deployment"),
    pytest.param(
        RevisionFacts,
        {"data": {"chosen": {}, "template": {"spec": {"containers": [{"name": word(10**6)}]}}}, "revision": 1},
        id="a ControllerRevision",
    ),
]


@pytest.mark.parametrize(("cls", "content"), CHILDREN)
def test_what_others_write_into_children_is_not_kept(cls: type[ChildFacts], content: Json) -> None:
    other = a_child(cls, **content | {"spec": {"other": 1}, "revision": 2})
    gc.collect()
    tracemalloc.start()
    facts = a_child(cls, **content)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 64 * KIB
    assert facts.foreign
    assert difference({"metadata": {"labels": {"a": "b"}}, **content}, facts.live(), facts.content) is not None
    assert not isinstance(facts, RevisionFacts) or not facts.is_valid_record
    assert facts.managed_hash != other.managed_hash
