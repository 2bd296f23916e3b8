"""The chaos run can be repeated, and strikes with everything that it has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.actions import (
    KILLS,
    Apply,
    Delete,
    EndPod,
    ForeignDelete,
    ForeignEdit,
    RefusedEdit,
    Step,
    Storm,
    kind_of,
)
from tests.chaos.faults import Kind
from tests.chaos.plan import PROBED, TAIL, outcome, plan

SEEDS = range(60)
SCRIPT = Path(__file__).parents[3] / "tools" / "scripts" / "test"
BLOWS = {
    *("Apply", "RefusedEdit", "DeleteOperatorPod", "SkewLease", "Storm"),
    *(f"{how} deletion" for how in ("Background", "Foreground", "Orphan")),
    *(f"{what} of {plural}" for what in ("edit", "deletion") for plural in ("deployments", "services")),
    *("edit of poddisruptionbudgets", "deletion of poddisruptionbudgets", "deletion of controllerrevisions"),
    *(f"{how} of a pod" for how in ("evict", "delete", "kill")),
    *(f"kill of {what}" for what in ("the operator", "kube-apiserver", "etcd")),
}


def test_a_seed_repeats_its_plan() -> None:
    assert plan(7, 600) == plan(7, 600)
    assert plan(7, 600) != plan(8, 600)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_minutes_have_every_blow_and_end_calm(seed: int) -> None:
    steps = plan(seed, 180)
    assert BLOWS - set(blows(steps)) == set()
    assert set(faults(steps)) == set(Kind)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert steps[-1].action == Storm(())


def test_the_run_of_make_test_kills_everything_and_has_every_fault_twice() -> None:
    minutes, seed = map(int, re.findall(r"--minutes (\d+) --seed (\d+)", SCRIPT.read_text())[0])
    steps = plan(seed, 60 * minutes)
    assert set(blows(steps)) >= BLOWS
    assert min(blows(steps)[kill] for kill in KILLS) >= 1
    # Some storm may find nobody who asks: a process of the operator that was killed starts later and later.
    assert {kind: count for kind, count in faults(steps).items() if count < 2} == {}


def test_make_test_takes_the_first_steps_of_the_longer_run() -> None:
    short, long = (plan(3, seconds) for seconds in (180, 600))
    begun = [step for step in short if step.at < 180 - TAIL]
    assert list(long[: len(begun)]) == begun
    assert len(begun) >= len(short) - 3


def test_vllm_goes_through_the_same_steps() -> None:
    """In the place of one service's stand-in: what it runs is all that differs."""

    def stand_ins(step: Step) -> Step:
        if isinstance(step.action, Apply) and step.action.name == PROBED[0]:
            assert step.action.desired.engine == "vllm"
            assert "image" not in step.action.desired.manifest(PROBED[0])["spec"].get("runtime", {})
            return replace(step, action=replace(step.action, desired=replace(step.action.desired, engine="stand-in")))
        return step

    assert tuple(map(stand_ins, plan(17, 180, "vllm"))) == plan(17, 180)


def blows(steps: Sequence[Step]) -> Counter[str]:
    return Counter(kind_of(step.action) for step in steps)


def faults(steps: Sequence[Step]) -> Counter[Kind]:
    """By kind, in how many storms."""
    return Counter(kind for step in steps if isinstance(step.action, Storm) for kind in step.action.weather.shares)


@pytest.mark.parametrize("seed", SEEDS)
def test_actions_are_possible_and_probed_services_never_fail_by_request(seed: int) -> None:
    steps = plan(seed, 600)
    present: set[str] = set()
    for index, step in enumerate(steps):
        match step.action:
            case Apply(name, desired):
                present.add(name)
                if name in PROBED:
                    assert desired.replicas >= 2
                    assert (desired.fails, desired.unknown_flag, desired.paused) == ("", False, False)
            case Delete(name):
                assert name in present - set(PROBED)
                present.remove(name)
                if step.action.cascade == "Orphan":  # what is orphaned is adopted again
                    later = [other.action for other in steps[index + 1 :]]
                    assert any(isinstance(action, Apply) and action.name == name for action in later)
            case EndPod(name) if name in PROBED:
                assert step.action.how in ("evict", "kill")
                assert name in present, step
            case ForeignEdit(name) | ForeignDelete(name) | EndPod(name) | RefusedEdit(name):
                assert name in present, step
    assert {name for name, desired in outcome(steps).items() if desired is not None} == present
