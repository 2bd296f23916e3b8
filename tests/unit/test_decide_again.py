"""What a revision is made of is the same until what it depends on is another."""

from collections.abc import Callable
from typing import Any

import pytest
from llmservice_operator.api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import World

NODES = ClusterGPUs((NodeGroup("NVIDIA-H100-80GB-HBM3", per_node=8, memory_mib=81559.0, capability=(9, 0)),))
OTHERS = ClusterGPUs((NodeGroup("NVIDIA-L40S", per_node=8, memory_mib=46068.0, capability=(8, 9)),))


def record_of(world: World) -> Any:
    """The manifest of the revision that would be made now."""
    (record,) = (apply.manifest for apply in world.decide().apply if apply.kind == "ControllerRevision")
    return record


def measured(world: World) -> None:
    """An earlier revision of this model on this hardware took its time to start."""
    plan = record_of(world)["data"]["chosen"]["plan"]
    world.obj["status"] = {
        "plan": {key: plan[key] for key in ("weightsGiB", "gpu")},
        "effective": {
            "accelerator": {"type": "nvidia"},
            "compilation": {"enforceEager": False},
            "model": {"servedNames": ["x"]},
        },
        "measured": {"modelLoadSeconds": 2000.0, "engineInitSeconds": 2000.0},
    }


ROWS: list[tuple[str, Callable[[World], object], str | None]] = [
    ("nothing else", lambda _: None, None),
    ("another status", lambda world: world.obj.update(status={"observedGeneration": 1}), None),
    ("other nodes", lambda world: setattr(world, "gpus", OTHERS), "plan"),
    ("a start that was measured", measured, "start"),
    (
        "an update that is asked for",
        lambda world: world.obj["metadata"].update(annotations={UPDATE_REQUESTED_ANNOTATION: "1"}),
        "updateRequested",
    ),
]


@pytest.mark.parametrize(("happens", "differs"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_record_after(happens: Callable[[World], object], differs: str | None) -> None:
    world = World(gpus=NODES)
    before = record_of(world)
    happens(world)
    after = record_of(world)
    assert (after == before) is (differs is None)
    chosen = [record["data"]["chosen"] for record in (before, after)]
    if differs is not None:
        assert chosen[0].get(differs) != chosen[1].get(differs)
