"""One row declares a kind of children: what follows from it, and what a kind does that is not served."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_api.constants import CHILD_KINDS, VERBS, ChildKind
from llmservice_operator.facts.children import ChildFacts
from llmservice_operator.manifests.children import BUILDERS
from llmservice_operator.observe.observed import PROJECTIONS, Observed
from llmservice_operator.service.watch import CHILD_RESOURCES

from tests.unit.decide_world import FACTS, FIVE_LINES, SETTINGS, World, an_llmservice

RULES = Path(__file__).parents[3] / "charts/llmservice-operator/templates/_rules.tpl"
BUDGET = "PodDisruptionBudget"
MAKES_ALL = {
    "parallelism": {"tensorParallelSize": 2, "nodes": 2},
    "scaling": {"replicas": 2, "autoscaling": {"maxReplicas": 4}},
    "endpoint": {"gateway": {"ref": {"name": "public"}}},
    "routing": {"mode": "pool"},
}
SCALING = replace(
    SETTINGS,
    scaler_address="scaler.llms.svc:9443",
    scaler_authentication="scaler",
    has_groups=True,
    has_gateways=True,
)


def rules() -> list[dict[str, Any]]:
    """The chart's rules, without what is Helm's."""
    loaded: list[dict[str, Any]] = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", RULES.read_text(), flags=re.DOTALL))
    return loaded


@pytest.mark.parametrize("child", CHILD_KINDS, ids=lambda child: child.kind)
def test_the_chart_grants_what_a_declared_kind_needs(child: ChildKind) -> None:
    granted = [
        r["verbs"]
        for r in rules()
        if child.resource.group in r["apiGroups"] and child.resource.plural in r["resources"]
    ]
    assert [sorted(verbs) for verbs in granted] == [sorted(VERBS)]


@pytest.mark.parametrize("child", CHILD_KINDS, ids=lambda child: child.kind)
def test_a_declared_kind_is_watched_and_projected_as_its_builder_makes_it(child: ChildKind) -> None:
    manifest = BUILDERS[child.kind](World(an_llmservice(FIVE_LINES | MAKES_ALL)).service(), SCALING)
    assert manifest is not None, "MAKES_ALL is to be a spec that has every child"
    (resource,) = (each for each in CHILD_RESOURCES if each.kind == child.kind)
    assert (manifest["apiVersion"], manifest["kind"]) == (resource.api_version, child.kind)
    assert manifest["metadata"]["name"] == "x"
    assert resource == child.resource
    live = {**manifest, "metadata": {**manifest["metadata"], "uid": "u"}}
    projected: ChildFacts = PROJECTIONS[child.kind](live, None)
    assert projected.kind == child.kind


def scaled(replicas: int, *hidden: str) -> World:
    """Rolled out, without the right to list these kinds."""
    world = World(an_llmservice(FIVE_LINES | {"scaling": {"replicas": replicas}}), hidden=frozenset(hidden))
    world.serve()
    return world


def test_a_service_that_is_to_have_a_child_of_a_kind_that_cannot_be_listed_serves_and_says_what_is_missing() -> None:
    world = scaled(2, BUDGET)
    assert (BUDGET, "x") not in world.children
    assert world.condition("Available")[0] == "True"
    assert world.condition("Ready")[1] == "AdmissionRefused"
    assert "poddisruptionbudgets.policy cannot be listed" in world.message("Ready")
    remedy = world.status["failure"]["remedy"]
    assert remedy.startswith("Install the CRD poddisruptionbudgets.policy, or grant the operator get, list")
    world.hidden = frozenset()
    world.serve()
    assert (BUDGET, "x") in world.children
    assert world.condition("Ready")[0] == "True"
    assert scaled(1, BUDGET).conditions() == scaled(1).conditions(), "without such a child nothing is missing"


def test_what_was_seen_of_a_kind_that_cannot_be_listed_any_more_is_neither_observed_nor_deleted() -> None:
    world = scaled(2)
    cached = {BUDGET: {"x": FACTS[BUDGET].from_object(world.children[BUDGET, "x"])}}
    for hidden, others in ((frozenset[str](), [BUDGET]), (frozenset({BUDGET}), [])):
        assert [child.kind for child in Observed.of("x", cached, hidden).others] == others
    world.hidden = frozenset({BUDGET})
    world.edit(scaling={"replicas": 1})
    assert BUDGET not in {prune.kind for prune in world.step().prune}
