"""The list of adapters: a ConfigMap that the operator may write but not read, and knows by what the Service says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.manifests.children import adapters_config, adapters_digest
from llmservice_operator.observe.observed import Refusal
from llmservice_runtime import adapter_list
from llmservice_runtime.adapter_list import Adapter

from tests.unit.decide_world import World, an_llmservice, orphaned, spec

Json = dict[str, Any]
CONFIG = ("ConfigMap", "x-adapters")


def world_of(*uris: str, **sections: Any) -> World:
    listed = [{"name": f"a{number}", "uri": uri} for number, uri in enumerate(uris)]
    return World(an_llmservice(spec(adapters=listed, **sections)))


def applied(world: World) -> list[str]:
    return [apply.kind for apply in world.decide().apply]


def annotated(world: World) -> Json:
    found: Json = world.children["Service", "x"]["metadata"]["annotations"]
    return found


def test_the_list_comes_before_the_pods_that_read_it() -> None:
    kinds = applied(world_of("hf://a/b"))
    assert kinds.index("ConfigMap") < kinds.index("Service") < kinds.index("Deployment")
    (apply,) = [apply for apply in world_of("hf://a/b").decide().apply if apply.kind == "ConfigMap"]
    assert apply.is_unreadable
    assert (apply.manifest["metadata"]["name"], apply.known_uid) == ("x-adapters", None)
    assert apply.manifest["metadata"]["ownerReferences"][0]["controller"]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        pytest.param("hf://a/b", None, id="hub"),
        pytest.param("s3://bucket/a", None, id="bucket"),
        pytest.param("file:///models/a", "/models/a", id="image of the runtime"),
        pytest.param("pvc://claim/a", "/llmservice/adapter-sources/", id="claim"),
        pytest.param("image://registry.example/a:1#b", "/llmservice/adapter-sources/", id="image volume"),
    ],
)
def test_paths_of_what_is_mounted_and_uris_of_what_is_fetched(uri: str, path: str | None) -> None:
    world = world_of(uri)
    (adapter,) = adapter_list.from_json(adapters_config(world.service())["data"]["adapters.json"])
    assert (adapter.name, adapter.uri) == ("a0", uri)
    assert (adapter.path or "").startswith(path) if path else adapter.path is None
    world.settle()
    mounts = json.dumps(world.template["spec"])
    if path and path.endswith("/"):
        assert str(adapter.path).rpartition("/")[0] in mounts, "the path is that of a mount"


def test_a_settled_list_is_not_applied_again() -> None:
    world = world_of("hf://a/b")
    world.settle()
    assert annotated(world)["llmservice.dev/adapters"] == adapters_digest(world.service())
    assert world.decide().is_steady


def test_without_the_mark_on_the_service_the_list_is_made_again() -> None:
    """As docs/troubleshooting.md has it, for a ConfigMap that somebody deleted."""
    world = world_of("hf://a/b")
    world.settle()
    del world.children[CONFIG]
    del annotated(world)["llmservice.dev/adapters"]
    assert applied(world) == ["ConfigMap", "Service"]
    world.settle()
    assert CONFIG in world.children


def test_a_change_of_the_list_restarts_nothing() -> None:
    world = world_of("hf://a/b")
    world.settle()
    before = json.dumps(world.deployment)
    world.edit(adapters=[{"name": "a0", "uri": "hf://a/b"}, {"name": "a1", "uri": "s3://bucket/c"}])
    assert applied(world) == ["ConfigMap", "Service"]
    world.settle()
    assert json.dumps(world.deployment) == before, "its generation counts its annotations too"
    assert len(adapter_list.from_json(world.children[CONFIG]["data"]["adapters.json"])) == 2


def test_the_order_in_the_spec_does_not_matter() -> None:
    world = world_of("hf://a/b", "hf://a/c")
    world.settle()
    world.edit(adapters=list(reversed(world.obj["spec"]["adapters"])))
    assert not world.decide().apply


@pytest.mark.parametrize("lora", [{}, None], ids=["LoRA stays on", "LoRA is off"])
def test_without_its_last_adapter_the_list_is_empty_or_deleted(lora: Json | None) -> None:
    world = world_of("hf://a/b", **({} if lora is None else {"lora": lora}))
    world.settle()
    world.edit(adapters=[])
    decision = world.step()
    kinds = [apply.kind for apply in decision.apply if apply.kind != "Deployment"]
    pruned = [(prune.name, prune.uid) for prune in decision.prune if prune.kind == "ConfigMap"]
    if lora is None:
        assert (pruned, CONFIG in world.children) == ([("x-adapters", None)], False)
    else:
        assert (kinds, pruned) == (["ConfigMap", "Service"], [])
        assert world.children[CONFIG]["data"]["adapters.json"] == "[]"
    world.settle()
    assert world.decide().is_steady


@pytest.mark.parametrize("adapters", [[], [{"name": "a0", "uri": "hf://a/b"}]], ids=["not desired", "as it was"])
def test_an_orphaned_list_is_adopted(adapters: list[Json]) -> None:
    """With the Service that names it: it is adopted, or deleted, in the same turn."""
    world = world_of("hf://a/b")
    world.settle()
    orphaned(world)
    world.edit(adapters=adapters)
    decision = world.decide()
    kinds = [*(apply.kind for apply in decision.apply), *(prune.kind for prune in decision.prune)]
    assert kinds.count("ConfigMap") == 1
    world.settle()
    assert (CONFIG in world.children) is bool(adapters)
    assert world.decide().is_steady


def test_without_lora_nobody_touches_a_config_map() -> None:
    world = World()
    world.settle()
    assert CONFIG not in world.children
    assert "llmservice.dev/adapters" not in annotated(world)
    assert not world.decide().prune


def test_a_config_map_of_somebody_else_is_a_conflict() -> None:
    world = world_of("hf://a/b")
    world.refused[CONFIG] = Refusal(409, "this operator did not make it")
    world.step()
    assert world.condition("Accepted")[1] == "NameConflict"
    assert "ConfigMap x-adapters exists already" in world.message("Accepted")


def test_both_sides_know_a_list_by_the_same_digest() -> None:
    world = world_of("hf://a/b")
    text = adapters_config(world.service())["data"]["adapters.json"]
    assert adapters_digest(world.service()) == adapter_list.digest(text)
    assert adapter_list.from_json(text) == (Adapter("a0", "hf://a/b"),)
