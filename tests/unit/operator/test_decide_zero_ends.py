"""At zero, what else may happen to a service: edits, a pause, a deletion, a foreign slice, the end of autoscaling."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from llmservice_api.holding import Activators
from llmservice_operator.manifests.settings import Settings

from tests.unit.decide_world import World
from tests.unit.operator.decide_zero_world import (
    SLICE,
    TWO,
    a_world,
    at_zero,
    follow,
    is_held,
    made,
    scale,
    serve,
    taken,
)

ONE_AT_LEAST = {"minReplicas": 1, "maxReplicas": 4}


def test_autoscaling_removed_at_zero_leaves_zero_to_the_user_and_refuses_no_connection() -> None:
    """The activators answer with the reason until a replica serves, also those that come later."""
    world = at_zero()
    world.edit(scaling={"replicas": 0})
    world.activators = (TWO,)
    world.settle()
    assert made(world) == 0
    assert [each["addresses"] for each in world.children[SLICE]["endpoints"]] == [[TWO.address]]
    assert world.condition("Ready") == ("True", "ScaledToZero")
    assert world.status["holding"] == {"port": 20_000}
    assert "ScaledObject" not in world.kinds()
    assert world.decide().is_steady
    scale(world, 1)
    world.settle()
    assert (made(world), is_held(world)) == (1, True)
    serve(world)
    assert (is_held(world), world.status.get("holding")) == (False, None)
    scale(world, 0)
    serve(world)
    assert (made(world), is_held(world)) == (0, False), "as of any service without autoscaling"


def test_autoscaling_removed_while_the_first_replica_starts_holds_until_it_serves() -> None:
    world = at_zero()
    scale(world, 1)
    world.settle()
    follow(world, ready=False)
    world.edit(scaling={"replicas": 1})
    world.settle()
    assert (made(world), is_held(world), world.status["holding"]["port"]) == (1, True, 20_000)
    serve(world)
    assert (made(world), is_held(world), world.status.get("holding")) == (1, False, None)


@pytest.mark.parametrize("rollouts", [False, True])
@pytest.mark.parametrize("is_raised", [False, True], ids=["by nobody", "by KEDA"])
def test_a_minimum_of_one_at_zero_starts_a_replica_and_holds_until_it_serves(
    *, rollouts: bool, is_raised: bool
) -> None:
    """Whether or not KEDA raises spec.scaling.replicas meanwhile."""
    world = at_zero()
    world.edit(scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST, "holding": {"rollouts": rollouts}})
    world.settle()
    assert (made(world), is_held(world)) == (1, True)
    assert world.children["ScaledObject", "x"]["spec"]["minReplicaCount"] == 1
    if is_raised:
        scale(world, 1)
        world.settle()
        assert (made(world), is_held(world)) == (1, True)
    serve(world)
    assert (made(world), is_held(world)) == (1, False)
    assert world.condition("Ready") == ("True", "RolledOut")
    scale(world, 1)
    serve(world)
    assert (made(world), world.status.get("holding")) == (1, {"port": 20_000} if rollouts else None)
    assert "ScaledObject" in world.kinds()


def test_a_minimum_of_one_keeps_the_replica_of_one_that_could_not_be_held() -> None:
    """The remedy of HoldingUnavailable, before KEDA has raised spec.scaling.replicas."""
    world = a_world()
    world.activators = ()
    scale(world, 0)
    serve(world)
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")
    world.edit(scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST})
    serve(world)
    assert made(world) == 1
    assert world.condition("Ready") == ("True", "RolledOut")


@pytest.mark.parametrize("is_written", [True, False], ids=["an earlier version's status", "no status of the zero"])
def test_a_minimum_of_one_where_the_status_has_only_the_port_starts_a_replica(*, is_written: bool) -> None:
    """An operator may end between KEDA's zero and its own status; earlier versions wrote no `idle`."""
    world = at_zero() if is_written else a_world()
    world.obj["status"]["holding"] = {"port": 20_000}
    world.edit(scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST})
    world.settle()
    assert made(world) == 1
    assert "ScaledObject" in world.kinds()


def test_a_user_may_stop_the_replica_that_a_raised_minimum_started() -> None:
    """It does not become ready, say."""
    world = at_zero()
    world.edit(scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST})
    world.settle()
    follow(world, ready=False)
    scale(world, 1)
    world.settle()
    assert (made(world), is_held(world), world.status["holding"]["idle"]) == (1, True, False)
    scale(world, 0)
    world.settle()
    assert (made(world), is_held(world), "ScaledObject" in world.kinds()) == (0, False, False)
    assert "holding" not in world.status


def test_a_manifest_that_states_no_replica_has_none_whatever_the_minimum() -> None:
    world = at_zero()
    world.edit(scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST})
    fields: dict[str, Any] = {"f:spec": {"f:scaling": {"f:replicas": {}}}}
    stated = {"manager": "argocd-controller", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}
    world.obj["metadata"]["managedFields"] = [stated | {"apiVersion": "llmservice.dev/v1alpha1"}]
    world.settle()
    assert made(world) == 0
    assert world.condition("Autoscaled") == ("False", "ReplicasStated")


def test_a_minimum_of_one_while_paused_starts_nothing() -> None:
    world = at_zero()
    world.edit(paused=True, scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST})
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    world.edit(paused=False, scaling={"replicas": 0, "autoscaling": ONE_AT_LEAST})
    world.settle()
    assert made(world) == 1


@pytest.mark.parametrize("rollouts", [False, True])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_zero_that_a_user_set_is_not_kedas(replicas: int, *, rollouts: bool) -> None:
    """With minReplicas 1 or more: the service was never at zero by its load. With `rollouts` it has a port."""
    world = a_world()
    autoscaling = {"minReplicas": 1, "maxReplicas": 4}
    world.edit(scaling={"replicas": 1, "autoscaling": autoscaling, "holding": {"rollouts": rollouts}})
    world.settle()
    scale(world, replicas)
    world.settle()
    assert ("ScaledObject" in world.kinds()) == bool(replicas)


def test_a_wake_while_the_pod_ends_keeps_the_slices() -> None:
    """The cluster's slice lists the pod a moment longer; then the Service would have no endpoint."""
    world = a_world()
    scale(world, 0)
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    world.pods["x-0"]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    scale(world, 1)
    world.settle()
    assert (made(world), is_held(world)) == (1, True), "what is listed ends"
    follow(world)
    world.settle()
    assert not is_held(world)


def test_an_installation_without_autoscaling_has_no_slices() -> None:
    world = at_zero()
    world.settings = Settings()
    world.settle()
    assert (made(world), is_held(world)) == (0, False)
    assert world.condition("Autoscaled") == ("False", "AutoscalingDisabled")


def test_paused_at_zero_starts_nothing_and_leaves_requests_to_the_activators_of_now() -> None:
    """Which answer that the service is paused; without the slices connections were refused."""
    world = at_zero()
    world.edit(paused=True)
    world.activators = (TWO,)
    world.settle()
    assert made(world) == 0
    assert [each["addresses"] for each in world.children[SLICE]["endpoints"]] == [[TWO.address]]
    assert world.decide().is_steady
    scale(world, 1)
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    world.edit(paused=False)
    world.settle()
    assert (made(world), is_held(world)) == (1, True)


@pytest.mark.parametrize("activators", [None, ()])
def test_paused_without_activators_keeps_what_there_is(activators: Activators) -> None:
    world = at_zero()
    before = copy.deepcopy(world.children[SLICE])
    world.edit(paused=True)
    world.activators = activators
    world.settle()
    assert (made(world), world.children[SLICE]) == (0, before)


def test_paused_beside_somebody_elses_slice_changes_nothing() -> None:
    world = at_zero()
    taken(world)
    theirs = world.children[SLICE]
    world.edit(paused=True)
    world.settle()
    assert (made(world), world.children[SLICE] is theirs) == (0, True)
    assert world.condition("Accepted") == ("True", "Paused")


def test_paused_while_a_pod_is_listed_makes_no_slices() -> None:
    world = a_world()
    world.edit(paused=True)
    scale(world, 0)
    world.settle()
    assert (made(world), is_held(world)) == (1, False)


REFUSED: dict[str, Any] = {
    "an unknown revision": {"rollout": {"pinnedRevision": "unknown"}},
    "a spec that cannot be parsed": {"model": {"uri": "nowhere"}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_edit_leaves_requests_on_their_way(case: str) -> None:
    """To the activators of now while no pod serves, and to the pod alone once it does."""
    world = at_zero()
    world.edit(**REFUSED[case])
    world.activators = (TWO,)
    world.settle()
    assert world.condition("Accepted")[0] == "False"
    (found,) = world.of_kind("EndpointSlice")
    assert [each["addresses"] for each in found["endpoints"]] == [[TWO.address]]
    world.deployment["spec"]["replicas"] = 1
    scale(world, 1)
    follow(world)
    world.settle()
    assert not is_held(world)
    assert world.decide().is_steady
    follow(world, ready=False)
    world.settle()
    assert is_held(world), "the pod is lost"


@pytest.mark.parametrize("activators", [None, ()])
def test_an_invalid_spec_without_activators_keeps_what_there_is(activators: Activators) -> None:
    world = at_zero()
    before = copy.deepcopy(world.children)
    world.edit(model={"uri": "nowhere"})
    world.activators = activators
    world.settle()
    assert world.children == before


def test_an_invalid_spec_of_a_service_that_holds_nothing_makes_no_slices() -> None:
    world = a_world()
    world.edit(scaling={"replicas": 1})
    world.settle()
    follow(world, ready=False)
    world.edit(model={"uri": "nowhere"})
    world.settle()
    assert not is_held(world)


def test_an_invalid_spec_leaves_somebody_elses_slice_alone() -> None:
    world = at_zero()
    taken(world)
    theirs = world.children[SLICE]
    world.edit(model={"uri": "nowhere"})
    world.settle()
    assert world.children[SLICE] is theirs


@pytest.mark.parametrize("make", [at_zero, a_world])
def test_an_invalid_spec_and_a_deletion_change_nothing(make: Callable[[], World]) -> None:
    world = make()
    before, holding = copy.deepcopy(world.children), world.status["holding"]
    world.edit(model={"uri": "nowhere"})
    world.settle()
    assert world.children == before
    assert world.status["holding"] == holding
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert world.decide().is_steady


def test_a_held_edit_goes_to_zero_and_comes_back_as_it_serves() -> None:
    world = a_world()
    world.edit(batching={"maxModelLen": 2**21}, precision={"weights": "float32"}, fitPolicy="Enforce")
    world.settle()
    assert world.condition("Ready") == ("False", "DoesNotFit")
    scale(world, 0)
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    follow(world)
    scale(world, 1)
    world.settle()
    assert made(world) == 1
    follow(world)
    world.settle()
    assert not is_held(world)


def test_an_edit_at_zero_starts_nothing() -> None:
    world = at_zero()
    before = world.revision()
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    follow(world)
    world.settle()
    assert world.revision() != before
    assert (made(world), is_held(world)) == (0, True)
    assert world.condition("Ready") == ("True", "Idle")


def test_somebody_elses_slice_at_zero_brings_a_replica() -> None:
    world = at_zero()
    taken(world)
    theirs = world.children[SLICE]
    world.settle()
    assert made(world) == 1
    assert world.children[SLICE] is theirs
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")


def test_a_slice_that_was_deleted_or_changed_is_made_again_without_a_replica() -> None:
    world = at_zero()
    del world.children[SLICE]
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    world.children[SLICE]["endpoints"] = []
    world.settle()
    assert (made(world), len(world.children[SLICE]["endpoints"])) == (0, 2)
