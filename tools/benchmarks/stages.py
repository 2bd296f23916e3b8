"""CPU milliseconds of each pure stage of a look at one service, in each moment of its first start and after an edit.

No cluster: the objects are what the API server would show of a service on a GPU. Each service has settings of its own,
so that nothing that is remembered of one helps the next.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from llmservice_operator.behaviours.rollout import initial_step
from llmservice_operator.children import desired_children
from llmservice_operator.manifests.revision import NO_CHOICES
from llmservice_operator.observe.observed import Observed
from llmservice_operator.revisions import desired_revision, match_revision
from llmservice_operator.service.watch import ParentFacts
from llmservice_planner import gpus, memory
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.model import config_json
from llmservice_planner.plan import Device, Request

from benchmarks.scale.services import manifest
from tests.unit.decide_world import QWEN_7B, SETTINGS, World, an_llmservice

LIMIT_MS = 2.0
"""What the median of each stage must stay below."""
RUNS = 300
GPU = "NVIDIA-H100-80GB-HBM3"
NODES = ClusterGPUs((NodeGroup(product=GPU, per_node=8, memory_mib=81559.0, capability=(9, 0)),))


def new(number: int) -> World:
    """A service of the scale benchmark, and a cluster that has room for it."""
    spec = copy.deepcopy(manifest(number)["spec"]) | {"scaling": {"replicas": 1}}
    spec["batching"]["maxNumSeqs"] += number
    return World(obj=an_llmservice(spec), gpus=NODES)


def begun(number: int) -> World:
    """Its children are made, and its pod is not there yet."""
    made = new(number)
    made.step()
    return made


def rolled_out(number: int) -> World:
    """Everything is there, and the status does not say so yet."""
    made = begun(number)
    made.roll_out()
    return made


def ready(number: int) -> World:
    """Everything is there, and told."""
    made = rolled_out(number)
    made.settle()
    return made


def edited(number: int) -> World:
    """Somebody wants another batch size."""
    made = ready(number)
    made.edit(batching={"maxModelLen": 8192, "maxNumSeqs": 1000 + number})
    return made


def device() -> Device:
    found = gpus.device(GPU)
    assert found is not None
    return found


class Answer(NamedTuple):
    """An LLMService as the API server shows it, and what the cache has of it."""

    raw: dict[str, Any]
    known: ParentFacts


def written(number: int) -> Answer:
    """The answer to a write of the status."""
    raw = ready(number).obj
    raw["metadata"]["resourceVersion"] = "2"
    known = ParentFacts.from_object(raw).with_status(raw["status"])
    return Answer(json.loads(json.dumps(raw)), known)


class Stage(NamedTuple):
    """A pure function of the operator, and how its input is made."""

    name: str
    make: Callable[[int], Any]
    do: Callable[[Any], object]


def build(world: World) -> object:
    service = world.service()
    revision = desired_revision(service, match_revision(service, ()), NO_CHOICES, SETTINGS)
    return desired_children(service, service.spec, revision, initial_step(service).strategy, SETTINGS)


class Seen(NamedTuple):
    """What a decision is made of."""

    world: World
    observed: Observed


def seen(make: Callable[[int], World]) -> Callable[[int], Seen]:
    """With what the watches brought: that is projected when it comes, and not at each look."""

    def looked(number: int) -> Seen:
        world = make(number)
        return Seen(world, world.observed())

    return looked


def decide(given: Seen) -> object:
    """What there is to do, with what it lacked at first."""
    return given.world.decide(given.observed)


STAGES = (
    Stage("validate", new, World.service),
    Stage("plan", lambda number: 1024 + number, lambda seqs: memory.plan(request(seqs))),
    Stage("build", new, build),
    Stage("decide: nothing is there yet", seen(new), decide),
    Stage("decide: the children are there", seen(begun), decide),
    Stage("decide: it is ready, and to be told", seen(rolled_out), decide),
    Stage("decide: steady", seen(ready), decide),
    Stage("decide: after an edit", seen(edited), decide),
    Stage("project: the answer to a status", written, lambda given: ParentFacts.from_object(*given)),
)


def request(max_num_seqs: int) -> Request:
    """A plan's question about the model of these services."""
    return Request(config_json.read(QWEN_7B), device(), max_model_len=8192, max_num_seqs=max_num_seqs)


def milliseconds(stage: Stage) -> tuple[float, float]:
    """Median and the 99th of a hundred, each on an input of its own."""
    inputs = [stage.make(number) for number in range(RUNS)]
    stage.do(stage.make(RUNS))
    took = []
    for given in inputs:
        begun_at = time.process_time()
        stage.do(given)
        took.append((time.process_time() - begun_at) * 1000)
    return round(statistics.median(took), 3), round(sorted(took)[int(RUNS * 0.99)], 3)


def main() -> int:
    """1 where a stage is above the limit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stages",
        description=__doc__,
        epilog="example: python -m benchmarks.stages --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="figures for a program")
    arguments = parser.parse_args()
    figures = {stage.name: milliseconds(stage) for stage in STAGES}
    if arguments.json:
        print(json.dumps({name: {"p50": p50, "p99": p99} for name, (p50, p99) in figures.items()}))
    else:
        for name, (p50, p99) in figures.items():
            print(f"{name:40} {p50:8.3f} ms  (99 of 100: {p99:.3f}; below {LIMIT_MS:g})")
    return int(any(p50 >= LIMIT_MS for p50, _ in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
