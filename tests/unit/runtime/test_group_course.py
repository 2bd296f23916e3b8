"""When a group starts, ends and tries again: the leader's decisions over scripted reports; no clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_runtime.contract import Failure
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.group.course import Course, Limits, Seen, advanced, recalled, refusal
from llmservice_runtime.group.protocol import Report, Step

LIMITS = Limits()
KILLED = Failure(R.ENGINE_DIED, "a process was killed", "", signal=9)
OF_MEMORY = Failure(R.GPU_OUT_OF_MEMORY, "out of memory", "")
ECHO = Failure(R.ENGINE_DIED, "connection closed by peer", "")


@dataclass
class Scene:
    """A group of pretended members, whose time passes as told."""

    size: int = 2
    course: Course = field(default_factory=Course)
    now: float = 1000.0
    members: dict[int, Seen] = field(default_factory=dict)

    def said(self, rank: int, step: Step, incarnation: int | None = None, **more: Any) -> None:
        number = self.course.incarnation if incarnation is None else incarnation
        report = Report(rank, self.size, "r", number, step, pod=f"pod-{rank}", **more)
        self.members[rank] = Seen(report, self.now)

    def all_said(self, step: Step, **more: Any) -> None:
        for rank in range(self.size):
            self.said(rank, step, started=step is Step.RUNNING, **more)

    def after(self, seconds: float, *, silent: tuple[int, ...] = ()) -> Course:
        """The course after this time, in which all but the silent ones repeat what they said."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.members = {
                rank: seen if rank in silent else replace(seen, at=self.now) for rank, seen in self.members.items()
            }
            self.course = advanced(self.course, self.members, self.size, self.now, LIMITS)
        return self.course

    def started(self) -> Course:
        """A group that serves."""
        self.all_said(Step.WAITING)
        assert self.after(0.25).run
        self.all_said(Step.RUNNING)
        return self.after(0.25)


def test_it_starts_once_all_wait_and_serves_once_all_run_and_the_leader_was_answered() -> None:
    scene = Scene(size=3)
    scene.said(0, Step.WAITING)
    scene.said(1, Step.WAITING)
    assert not scene.after(60).run, "rank 2 is not there"
    scene.said(2, Step.PREPARING, 0)
    assert not scene.after(60).run, "rank 2 fetches"
    scene.said(2, Step.WAITING)
    assert scene.after(0.25).run
    scene.all_said(Step.RUNNING)
    scene.said(0, Step.RUNNING, started=False)
    assert not scene.after(60).ready
    scene.said(0, Step.RUNNING, started=True)
    assert scene.after(0.25).ready


@pytest.mark.parametrize(
    ("silence", "is_ready", "is_same"),
    [(2.5, True, True), (4.0, False, True), (9.5, False, True), (13.0, False, False)],
)
def test_silence(silence: float, is_ready: bool, is_same: bool) -> None:
    scene = Scene()
    before = scene.started()
    assert before.ready
    after = scene.after(silence, silent=(1,))
    assert (after.ready, after.incarnation == before.incarnation) == (is_ready, is_same)
    if is_same:
        assert scene.after(0.5).ready, "heard of again"


def test_the_cause_is_the_member_on_which_it_happened_though_its_consequence_was_heard_first() -> None:
    scene = Scene(size=3)
    scene.started()
    scene.said(0, Step.FAILED, failure=ECHO)
    assert not scene.after(0.25).ready
    assert scene.after(0.5).incarnation == 1, "the others may still say why"
    scene.said(2, Step.FAILED, failure=KILLED)
    ended = scene.after(2)
    assert (ended.incarnation, ended.run) == (2, False)
    assert ended.cause is not None
    assert (ended.cause.rank, ended.cause.pod, ended.cause.failure) == (2, "pod-2", KILLED)


def failed(scene: Scene, failure: Failure = OF_MEMORY) -> Course:
    scene.said(1, Step.FAILED, failure=failure)
    return scene.after(2.25)


def test_a_back_off_doubles_until_the_budget_is_used_up_and_then_nothing_starts() -> None:
    scene, delays = Scene(), []
    for _ in range(LIMITS.budget):
        scene.started()
        ended = failed(scene)
        delays.append(round(ended.not_before - scene.now))
        scene.all_said(Step.WAITING)
        assert not scene.after(ended.not_before - scene.now - 1).run
        scene.after(1)
    assert delays == [10, 20, 40, 80, 160]
    scene.all_said(Step.RUNNING)
    ended = failed(scene)
    assert ended.is_exhausted
    assert ended.cause is not None
    assert ended.cause.failure == OF_MEMORY
    scene.all_said(Step.WAITING)
    assert not scene.after(7200).run


def test_a_group_that_was_good_restarts_at_once_and_as_often_as_it_has_to() -> None:
    scene = Scene()
    for number in range(12):
        assert scene.started().ready, number
        scene.after(LIMITS.good + 1)
        ended = failed(scene, KILLED)
        assert ended.not_before <= scene.now
        assert not ended.is_exhausted


def test_a_member_whose_container_started_anew_ends_the_incarnation() -> None:
    scene = Scene()
    scene.started()
    scene.said(1, Step.PREPARING, 0)
    ended = scene.after(2.25)
    assert (ended.incarnation, ended.run) == (2, False)
    assert ended.cause is not None
    assert "pod-1" in ended.cause.failure.message


def test_a_new_leader_ends_what_runs_and_begins_with_a_number_that_none_had() -> None:
    scene = Scene()
    scene.said(0, Step.WAITING)
    scene.said(1, Step.RUNNING, 7)
    assert not scene.after(0.25).run
    assert scene.course.incarnation == 8
    scene.said(0, Step.WAITING)
    scene.said(1, Step.FAILED, 7, failure=ECHO)
    assert not scene.after(5).run, "it has not ended yet"
    scene.said(1, Step.WAITING)
    assert scene.after(0.25).run


def test_a_new_leader_whose_number_is_in_use() -> None:
    scene = Scene()
    scene.said(0, Step.WAITING, 1)
    scene.said(1, Step.RUNNING, 1)
    assert (scene.after(0.25).incarnation, scene.course.run) == (2, False)


def test_one_that_leaves_costs_no_budget() -> None:
    scene = Scene()
    scene.started()
    scene.course = recalled(scene.course)
    assert (scene.course.incarnation, scene.course.run, scene.course.restarts) == (2, False, ())
    scene.all_said(Step.WAITING)
    assert scene.after(0.25).run


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"rank": 0}, "its rank is 0, and the group has 2 members"),
        ({"rank": 2}, "its rank is 2, and the group has 2 members"),
        ({"size": 4}, "its size is 4, the group's is 2"),
        ({"revision": "s"}, "its revision is s, the group's is r"),
        ({"vllm_version": "0.33.0"}, "its vLLM is 0.33.0, the group's is 0.32.0"),
        ({"vllm_version": ""}, ""),
    ],
)
def test_who_is_refused(changed: Mapping[str, Any], why: str) -> None:
    leader = Report(0, 2, "r", 1, Step.WAITING, vllm_version="0.32.0")
    worker = replace(leader, **{"rank": 1, **changed})
    assert refusal(worker, leader) == why


REPORTS = st.tuples(
    st.integers(0, 2), st.sampled_from(list(Step)), st.integers(0, 6), st.sampled_from([None, KILLED, ECHO, OF_MEMORY])
)


@given(st.lists(st.tuples(REPORTS, st.sampled_from([0.0, 0.25, 1.0, 5.0, 400.0])), max_size=40))
def test_whatever_members_say(script: list[tuple[tuple[int, Step, int, Failure | None], float]]) -> None:
    """Numbers only grow; nothing runs twice with one number; ready only while it runs; the budget holds."""
    scene, began = Scene(size=3), list[int]()
    for (rank, step, number, failure), seconds in script:
        before = scene.course
        scene.said(rank, step, number, failure=failure if step is Step.FAILED else None)
        after = scene.after(seconds) if seconds else scene.course
        assert after.incarnation >= before.incarnation
        if after.run and not before.run:
            began.append(after.incarnation)
        assert after.run or not after.ready
        assert len(after.restarts) <= LIMITS.budget
    assert len(began) == len(set(began))
