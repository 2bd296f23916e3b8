"""The leader's decisions: when vLLM starts on all members, when all end it, and when they try again.

A pure function of what the members report and of the time (seconds, monotonic). An incarnation is one start of vLLM on
all members together: none of them can go on without the others, and none may start while something of the last
incarnation still runs or holds a port.

A failure is followed by the next incarnation after a back-off, within a budget. Neither counts for a group that was
ready for `good_seconds`: what ends such a group is not its configuration. The cause that is told is the first one, of
the member on which it happened, and not its consequences on the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from llmservice_runtime.contract import Cause, FailureReason, GroupState, MemberState
from llmservice_runtime.failures import failures
from llmservice_runtime.group.protocol import Order, Report, Step

CONSEQUENCES = frozenset({FailureReason.GROUP_MEMBER_LOST, FailureReason.ENGINE_DIED})
"""Reasons that a member reports when another one fails."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds."""

    silent: float = 3.0
    """A group whose member has been silent for so long takes no requests."""
    lost: float = 10.0
    """A member that has been silent for so long is lost."""
    settle: float = 2.0
    """From the first failure until the members end vLLM: the member on which it happened may report later."""
    good: float = 600.0
    """A group that was ready for so long restarts at once, and as often as it has to."""
    first_delay: float = 10.0
    """Doubled for each further failure in a row."""
    longest_delay: float = 300.0
    budget: int = 5
    """Restarts within `budget_seconds`."""
    budget_seconds: float = 3600.0


@dataclass(frozen=True)
class Seen:
    """A member's last report."""

    report: Report
    at: float
    """When it came."""


@dataclass(frozen=True)
class Course:
    """What the leader decided so far."""

    incarnation: int = 1
    run: bool = False
    failing_since: float | None = None
    """Of this incarnation."""
    ready_since: float | None = None
    """Of this incarnation: when it was first ready."""
    ready: bool = False
    cause: Cause | None = None
    """Why the last incarnation ended."""
    restarts: tuple[float, ...] = field(default=())
    """Those that count against the budget, by time."""
    in_a_row: int = 0
    """Failures since the group was last ready for `good`."""
    not_before: float = 0.0
    """When the next incarnation may begin."""
    is_exhausted: bool = False
    """The budget is used up: nothing starts any more."""

    def order(self, refused: str = "") -> Order:
        """For a worker; `refused`: why it is none."""
        return Order(self.incarnation, self.run and not refused, self.ready and not refused, refused)


def refusal(worker: Report, leader: Report) -> str:
    """Why a worker does not belong to the leader's group; empty where it does."""
    if not 0 < worker.rank < leader.size:
        return f"its rank is {worker.rank}, and the group has {leader.size} members"
    for name, theirs, own in (
        ("size", worker.size, leader.size),
        ("revision", worker.revision, leader.revision),
        ("vLLM", worker.vllm_version, leader.vllm_version),
    ):
        if theirs and own and theirs != own:
            return f"its {name} is {theirs}, the group's is {own}"
    return ""


def advanced(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> Course:
    """The course after what the members reported, by rank, the leader itself among them."""
    if course.run:
        return _running(course, members, size, now, limits)
    used = (seen.report.incarnation for seen in members.values() if seen.report.step not in _UNUSED)
    if (highest := max(used, default=0)) >= course.incarnation:  # they were led by another one, which is gone
        return recalled(replace(course, incarnation=highest))
    return replace(course, run=_may_begin(course, members, size, now, limits))


_UNUSED = (Step.PREPARING, Step.WAITING)


def recalled(course: Course) -> Course:
    """The course after the members' vLLM is to end without a failure, since one of them leaves."""
    return replace(
        course, incarnation=course.incarnation + 1, run=False, ready=False, failing_since=None, ready_since=None
    )


def is_leaving(members: Mapping[int, Seen]) -> bool:
    """Whether a member got SIGTERM."""
    return any(seen.report.step is Step.LEAVING for seen in members.values())


def _may_begin(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> bool:
    if course.is_exhausted or now < course.not_before:
        return False
    heard = [members.get(rank) for rank in range(size)]
    return all(seen is not None and now - seen.at < limits.silent and _waits(seen, course) for seen in heard)


def _running(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> Course:
    failed = sorted(_failures(course, members, size, now, limits), key=lambda found: found[:2])
    if not failed and course.failing_since is None:
        is_ready = all(_is_well(course, members.get(rank), now, limits) for rank in range(size))
        is_ready = is_ready and members[0].report.started
        ready_since = now if is_ready and course.ready_since is None else course.ready_since
        return replace(course, ready=is_ready, ready_since=ready_since)
    since = now if course.failing_since is None else course.failing_since
    if now - since < limits.settle and len(failed) < size:
        return replace(course, ready=False, failing_since=since)
    if not failed:  # a silent member came back in time
        return replace(course, failing_since=None)
    return _ended(course, failed[0][2], since, now, limits)


def _is_well(course: Course, seen: Seen | None, now: float, limits: Limits) -> bool:
    return (
        seen is not None
        and now - seen.at < limits.silent
        and (seen.report.step, seen.report.incarnation) == (Step.RUNNING, course.incarnation)
    )


def _failures(
    course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits
) -> Iterator[tuple[bool, float, Cause]]:
    """Whether it is a consequence, when it was known, and what: sorted, the first is the cause."""
    for rank in range(size):
        seen = members.get(rank)
        if seen is None:
            yield True, now, Cause(rank, "", "", failures.group_member_lost(rank, "", limits.lost))
            continue
        report = seen.report
        if report.step is Step.FAILED and report.incarnation == course.incarnation and report.failure is not None:
            is_consequence = report.failure.reason in CONSEQUENCES and report.failure.signal is None
            yield is_consequence, seen.at, Cause(rank, report.pod, report.node, report.failure)
        elif now - seen.at >= limits.lost:
            lost = failures.group_member_lost(rank, report.pod, now - seen.at)
            yield True, seen.at, Cause(rank, report.pod, report.node, lost)
        elif report.incarnation != course.incarnation:  # its container started anew
            restarted = failures.group_member_restarted(rank, report.pod)
            yield False, seen.at, Cause(rank, report.pod, report.node, restarted)


def _ended(course: Course, cause: Cause, since: float, now: float, limits: Limits) -> Course:
    """The next incarnation, with its back-off; none once the budget is used up."""
    after = replace(recalled(course), cause=cause)
    if course.ready_since is not None and since - course.ready_since >= limits.good:
        return replace(after, in_a_row=0, not_before=now)
    recent = tuple(at for at in course.restarts if now - at < limits.budget_seconds)
    if len(recent) >= limits.budget:
        return replace(after, restarts=recent, is_exhausted=True)
    delay = min(limits.longest_delay, limits.first_delay * 2.0 ** min(course.in_a_row, 30))
    return replace(after, restarts=(*recent, now), in_a_row=course.in_a_row + 1, not_before=now + delay)


def awaits(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> str:
    """What keeps the members' vLLM from starting, for people."""
    if course.is_exhausted:
        return "the group has used up its restarts"
    if now < course.not_before:
        return f"the group starts again in {course.not_before - now:.0f} s"
    missing = [rank for rank in range(size) if (seen := members.get(rank)) is None or now - seen.at >= limits.silent]
    if missing:
        return f"waiting for rank {', '.join(map(str, missing))} of the group"
    busy = [f"{rank} ({seen.report.step})" for rank, seen in sorted(members.items()) if not _waits(seen, course)]
    return f"waiting until rank {', '.join(busy)} of the group can start" if busy else ""


def _waits(seen: Seen, course: Course) -> bool:
    return (seen.report.step, seen.report.incarnation) == (Step.WAITING, course.incarnation)


def told(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> GroupState:
    """What the leader says of its group."""
    waits = course.not_before - now
    return GroupState(
        size,
        course.incarnation,
        tuple(
            MemberState(rank, seen.report.step, seen.report.pod, seen.report.node, seen.report.progress, now - seen.at)
            for rank, seen in sorted(members.items())
        ),
        course.cause,
        sum(now - at < limits.budget_seconds for at in course.restarts),
        waits if waits > 0 and not (course.run or course.is_exhausted) else None,
        course.is_exhausted,
    )
