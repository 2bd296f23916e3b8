"""When a group starts, ends and tries again: the leader's decisions over scripted reports; no clock, no socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_runtime.bounded_json import MAX_BYTES
from llmservice_runtime.contract import MAX_NODES, MAX_TEXT, Failure, Phase, State
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.group.course import (
    Course,
    Limits,
    Seen,
    advanced,
    awaits,
    heard,
    recalled,
    refusal,
    slowest,
    told,
)
from llmservice_runtime.group.protocol import Hello, Report, Step

LIMITS = Limits()
KILLED = Failure(R.ENGINE_DIED, "a process was killed", "", signal=9)
OF_MEMORY = Failure(R.GPU_OUT_OF_MEMORY, "out of memory", "")
ECHO = Failure(R.ENGINE_DIED, "connection closed by peer", "")
UNKNOWN = Failure(R.STARTUP_FAILED, "an error that is not recognised", "")


@dataclass
class Scene:
    """A group of pretended members, whose time passes as told."""

    size: int = 2
    course: Course = field(default_factory=Course)
    now: float = 1000.0
    members: dict[int, Seen] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def said(self, rank: int, step: Step, incarnation: int | None = None, **more: Any) -> None:
        number = self.course.incarnation if incarnation is None else incarnation
        hello = Hello(rank, self.size, "g", "r", f"instance-{rank}", f"pod-{rank}", f"node-{rank}")
        self.members[rank] = heard(self.members.get(rank), hello, Report(number, step, **more), self.now)

    def closed(self, rank: int) -> None:
        self.members[rank] = replace(self.members[rank], closed_at=self.now)

    def all_said(self, step: Step, **more: Any) -> None:
        for rank in range(self.size):
            self.said(rank, step, started=step is Step.RUNNING, **more)

    def after(self, seconds: float, *, in_flight: int = 0) -> Course:
        """The course after this time, in which all but the silent ones repeat what they said, each at a time of its
        own."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            for rank, seen in self.members.items():
                if rank not in self.silent and seen.closed_at is None:
                    at = max(seen.at, self.now - 0.01 * (self.size - rank))
                    self.members[rank] = heard(seen, seen.hello, seen.report, at)
            self.course = advanced(self.course, self.members, self.size, self.now, LIMITS, in_flight)
        return self.course

    def started(self) -> Course:
        """A group that serves."""
        self.all_said(Step.WAITING)
        assert self.after(0.25).run
        self.all_said(Step.RUNNING)
        return self.after(0.25)


def test_a_member_that_has_not_answered_keeps_the_group_unready() -> None:
    scene = Scene(size=3)
    scene.started()
    scene.said(2, Step.RUNNING, started=False)
    assert not scene.after(0.25).ready
    scene.said(2, Step.RUNNING, started=True)
    assert scene.after(0.25).ready


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
    scene.silent = {1}
    after = scene.after(silence)
    assert (after.ready, after.incarnation == before.incarnation) == (is_ready, is_same)
    scene.silent.clear()
    if is_same:
        assert scene.after(0.5).ready, "heard of again"


def fails(rank: int, failure: Failure | None) -> Callable[[Scene], None]:
    return lambda scene: scene.said(rank, Step.FAILED, failure=failure)


def closes(rank: int) -> Callable[[Scene], None]:
    return lambda scene: scene.closed(rank)


def connects(rank: int) -> Callable[[Scene], None]:
    return lambda scene: scene.said(rank, Step.RUNNING)


def falls_silent(rank: int) -> Callable[[Scene], None]:
    return lambda scene: scene.silent.add(rank)


def speaks(rank: int) -> Callable[[Scene], None]:
    return lambda scene: scene.silent.remove(rank)


FIRST_CAUSES = [
    ("a consequence is heard first", [fails(0, ECHO), fails(2, KILLED)], (2, R.ENGINE_DIED)),
    ("the first of two that may be consequences", [fails(2, ECHO), fails(0, ECHO)], (2, R.ENGINE_DIED)),
    ("a start's consequence is heard first", [fails(0, UNKNOWN), fails(1, OF_MEMORY)], (1, R.GPU_OUT_OF_MEMORY)),
    ("it is not said why", [fails(1, None)], (1, R.ENGINE_DIED)),
    ("a pod dies whole", [closes(2), fails(0, ECHO)], (2, R.GROUP_MEMBER_LOST)),
    ("a pod dies whole, of which the leader's is killed", [closes(2), fails(0, KILLED)], (2, R.GROUP_MEMBER_LOST)),
    ("a node dies", [falls_silent(2), fails(0, ECHO)], (2, R.GROUP_MEMBER_LOST)),
    ("a connection ends later", [fails(0, ECHO), closes(2)], (0, R.ENGINE_DIED)),
    ("a connection ended and is there again", [closes(2), connects(2), fails(0, ECHO)], (0, R.ENGINE_DIED)),
    ("silence that ends", [falls_silent(2), fails(0, ECHO), speaks(2)], (0, R.ENGINE_DIED)),
]


@pytest.mark.parametrize(("events", "wanted"), [row[1:] for row in FIRST_CAUSES], ids=[row[0] for row in FIRST_CAUSES])
def test_the_first_cause(events: list[Callable[[Scene], None]], wanted: tuple[int, R]) -> None:
    """Half a second after one another; the decision waits for what may still be said."""
    scene = Scene(size=3)
    scene.started()
    for event in events:
        event(scene)
        scene.after(0.5)
        assert scene.course.incarnation == 1
    assert not scene.course.ready
    ended = scene.after(10)
    assert (ended.incarnation, ended.run) == (2, False)
    assert ended.cause is not None
    assert (ended.cause.rank, ended.cause.failure.reason) == wanted
    assert (ended.cause.pod, ended.cause.node) == (f"pod-{wanted[0]}", f"node-{wanted[0]}")


def test_requests_in_flight_are_counted_when_it_is_noticed() -> None:
    scene = Scene()
    scene.started()
    scene.after(1, in_flight=3)
    scene.said(1, Step.FAILED, failure=KILLED)
    scene.after(0.25, in_flight=5)
    cause = scene.after(2, in_flight=1).cause
    assert cause is not None
    assert cause.lost_requests == 5


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


def test_only_the_last_time_of_readiness_counts() -> None:
    scene = Scene()
    scene.started()
    for _ in range(3):
        scene.after(LIMITS.good / 2)
        scene.silent = {1}
        assert not scene.after(LIMITS.silent + 0.5).ready
        scene.silent.clear()
        assert scene.after(0.5).ready
    ended = failed(scene, KILLED)
    assert (len(ended.restarts), ended.in_a_row) == (1, 1)


def test_a_good_group_of_which_a_member_falls_silent_restarts_at_once() -> None:
    scene = Scene()
    scene.started()
    scene.after(LIMITS.good + 1)
    scene.silent = {1}
    ended = scene.after(LIMITS.lost + LIMITS.settle + 1)
    assert (ended.incarnation, ended.restarts) == (2, ())


def test_silence_is_no_readiness() -> None:
    scene = Scene()
    scene.started()
    scene.after(LIMITS.good - LIMITS.lost)
    scene.silent = {1}
    assert len(scene.after(LIMITS.lost + LIMITS.settle + 1).restarts) == 1


def test_the_cause_is_told_until_the_group_is_ready_again() -> None:
    scene = Scene()
    scene.started()
    ended = failed(scene)
    scene.all_said(Step.WAITING)
    assert scene.after(ended.not_before - scene.now).run
    scene.all_said(Step.RUNNING)
    scene.said(0, Step.RUNNING, started=False)
    loading = scene.after(60)
    assert (loading.cause, loading.order().blamed) == (ended.cause, 1)
    scene.said(0, Step.RUNNING, started=True)
    assert scene.after(0.25).cause is None


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
    ended = failed(scene)
    assert ended.cause is not None
    scene.course = after = recalled(ended)
    assert (after.incarnation, after.run, after.restarts, after.cause) == (3, False, ended.restarts, None)
    scene.now = ended.not_before
    scene.all_said(Step.WAITING)
    assert scene.after(0.25).run


def test_what_fails_while_one_leaves_is_no_failure_of_the_group() -> None:
    scene = Scene()
    scene.started()
    scene.said(1, Step.LEAVING)
    scene.after(30)
    assert scene.course.run, "the leader answers what is in flight"
    scene.said(0, Step.FAILED, failure=ECHO)
    ended = scene.after(2.25)
    assert (ended.incarnation, ended.run, ended.restarts, ended.cause) == (2, False, (), None)


def test_a_connection_that_ended_starts_nothing() -> None:
    scene = Scene()
    scene.all_said(Step.WAITING)
    scene.closed(1)
    assert not scene.after(0.25).run
    scene.said(1, Step.WAITING)
    assert scene.after(0.25).run


def test_the_slowest_is_named_with_what_it_does() -> None:
    scene = Scene()
    scene.said(0, Step.WAITING)
    scene.said(1, Step.PREPARING, 0, progress="model: Downloading 7%")
    waits = awaits(scene.course, scene.members, 2, scene.now, LIMITS)
    assert waits == "waiting until rank 1 (Preparing: model: Downloading 7%) of the group can start"
    assert told(scene.course, scene.members, 2, scene.now, LIMITS).members[1].progress == "model: Downloading 7%"


BEHIND: dict[str, tuple[tuple[str, ...], str]] = {
    "by the stage": (("cache ready, warming up", "compiling the model"), "rank 1 is behind (compiling the model)"),
    "by percent": (
        ("loading the weights: 90%", "loading the weights: 100%", "loading the weights: 8%"),
        "rank 2 is behind (loading the weights: 8%)",
    ),
    "the leader, as its own progress says": (("starting vLLM", "loading the weights"), ""),
    "none": (("loading the weights: 9%", "loading the weights: 9%"), ""),
    "nothing is known of one": (("loading the weights: 9%", "doing this: 1%"), ""),
    "nothing is known": (("", ""), ""),
}


@pytest.mark.parametrize("name", BEHIND)
def test_which_rank_is_behind_while_vllm_starts(name: str) -> None:
    said, expected = BEHIND[name]
    scene = Scene(size=len(said))
    for rank, progress in enumerate(said):
        scene.said(rank, Step.RUNNING, progress=progress)
    assert slowest(replace(scene.course, run=True), scene.members) == expected


def test_whatever_members_say_of_themselves_the_operator_reads_the_state() -> None:
    """A state of more bytes is refused; half of them is for what else a state holds."""
    scene = Scene(size=MAX_NODES)
    long = Failure(R.ENGINE_DIED, "\u2028" * 1000, "", ())
    for rank in range(MAX_NODES):
        hello = Hello(rank, MAX_NODES, "g", "r", "i", "\U0001f600" * 253, "\u2028" * 253)
        report = Report(1, Step.FAILED, progress='"' * MAX_TEXT, failure=long)
        scene.members[rank] = heard(None, hello, report, scene.now)
    scene.course = replace(scene.course, run=True)
    group = told(scene.after(2.25), scene.members, MAX_NODES, scene.now, LIMITS)
    assert group.cause is not None
    text = State(Phase.LOADING, group=group).to_json()
    assert len(text.encode()) < MAX_BYTES // 2
    read = State.from_json(text)
    assert read is not None
    assert read.group is not None
    assert len(read.group.members) == MAX_NODES


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"rank": 0}, "rank 0 is none of a group of 2"),
        ({"rank": 2}, "rank 2 is none of a group of 2"),
        ({"size": 4}, "rank 1 has size 4, and the leader has 2"),
        ({"group": "h"}, "rank 1 has group h, and the leader has g"),
        ({"revision": "s"}, "rank 1 has revision s, and the leader has r"),
        ({"vllm_version": "0.33.0"}, "rank 1 has vLLM 0.33.0, and the leader has 0.32.0"),
        ({"vllm_version": ""}, ""),
        ({"build": "f00d"}, "rank 1 has packages f00d, and the leader has beef"),
        ({"instance": "another", "pod": "another"}, ""),
    ],
)
def test_who_is_refused(changed: Mapping[str, Any], why: str) -> None:
    leader = Hello(0, 2, "g", "r", "i", vllm_version="0.32.0", build="beef")
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
