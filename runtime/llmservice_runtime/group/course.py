"""The leader's decisions: when vLLM starts on all members, when all end it, and when they try again.

A pure function of what the members report and of the time (seconds, monotonic). An incarnation is one start of vLLM on
all members together: none of them can go on without the others, and none may start while something of the last
incarnation still runs or holds a port.

A failure is followed by the next incarnation after a back-off, within a budget. Neither counts for a group that was
ready for `Limits.good`: what ends such a group is not its configuration. The reported cause is the first one, of
the member on which it happened, and not its consequences on the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from llmservice_runtime.contract import Cause, Failure, FailureReason, GroupState, MemberState
from llmservice_runtime.documents import to_line
from llmservice_runtime.failures import failures
from llmservice_runtime.group.protocol import Hello, Order, Report, Step
from llmservice_runtime.supervisor.log_reader import position

CONSEQUENCES = frozenset(
    {
        FailureReason.GROUP_MEMBER_LOST,
        FailureReason.ENGINE_DIED,
        FailureReason.STARTUP_FAILED,
        FailureReason.SMOKE_REQUEST_FAILED,
    }
)
"""Reasons that a member may report when another one fails."""
LEAP = 1_000_000
"""How far the number of an incarnation may be ahead of the own one: more than a group ever starts, and so little that
no member brings the numbers to their end."""
_MEMBERS_BYTES = 24 << 10
"""Of JSON for all members: keeps /state within the operator's read limit."""


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
    """What is known of a member."""

    hello: Hello
    report: Report
    at: float
    """When the report came."""
    since: float
    """When it first said of this incarnation that it failed, or that it did not."""
    closed_at: float | None = None
    """When its connection ended; None while there is one."""


def heard(before: Seen | None, hello: Hello, report: Report, now: float) -> Seen:
    """What is known after a report."""
    is_news = before is None or _topic(before.hello, before.report) != _topic(hello, report)
    return Seen(hello, report, now, now if before is None or is_news else before.since)


def _topic(hello: Hello, report: Report) -> tuple[str, int, bool]:
    return hello.instance, report.incarnation, report.step is Step.FAILED


@dataclass(frozen=True)
class Course:
    """What the leader decided so far."""

    incarnation: int = 1
    run: bool = False
    failing_since: float | None = None
    """Of this incarnation."""
    ready: bool = False
    ready_since: float | None = None
    """When this incarnation last became ready."""
    unready_since: float | None = None
    """When it ceased to be; None while it is ready, and before it first was."""
    in_flight: int = 0
    """Requests when it began to fail."""
    cause: Cause | None = None
    """Why the last incarnation failed; None once the group is ready again."""
    restarts: tuple[float, ...] = field(default=())
    """Those that count against the budget, by time."""
    in_a_row: int = 0
    """Failures since the group was last ready for `good`."""
    not_before: float = 0.0
    """When the next incarnation may begin."""
    is_exhausted: bool = False
    """The budget is used up: nothing starts any more."""

    def order(self) -> Order:
        """For all workers."""
        blamed = None if self.cause is None else self.cause.rank
        return Order(self.incarnation, self.run, self.ready, blamed, self.is_exhausted)


def refusal(worker: Hello, leader: Hello) -> str:
    """Why a worker does not belong to the leader's group; empty where it does."""
    if not 0 < worker.rank < leader.size:
        return f"rank {worker.rank} is none of a group of {leader.size}"
    for name, theirs, own in (
        ("group", worker.group, leader.group),
        ("size", str(worker.size), str(leader.size)),
        ("revision", worker.revision, leader.revision),
        ("vLLM", worker.vllm_version, leader.vllm_version),
        ("packages", worker.build, leader.build),
    ):
        if theirs and own and theirs != own:
            return f"rank {worker.rank} has {name} {theirs}, and the leader has {own}"
    return ""


def advanced(
    course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits, in_flight: int = 0
) -> Course:
    """The course after what the members reported, by rank, the leader itself among them.

    `in_flight`: the requests that the group answers now.
    """
    if course.run:
        return _running(course, members, size, now, limits, in_flight)
    used = (seen.report.incarnation for seen in members.values() if seen.report.step not in _UNUSED)
    if (highest := max(used, default=0)) >= course.incarnation:  # they were led by another one, which is gone
        return _next(replace(course, incarnation=highest))
    return replace(course, run=_may_begin(course, members, size, now, limits))


_UNUSED = (Step.PREPARING, Step.WAITING)


def recalled(course: Course) -> Course:
    """The course after the members' vLLM is to end without a failure, since one of them leaves."""
    return replace(_next(course), cause=None)


def _next(course: Course) -> Course:
    after = replace(course, incarnation=course.incarnation + 1, run=False, ready=False)
    return replace(after, failing_since=None, ready_since=None, unready_since=None)


def is_leaving(members: Mapping[int, Seen]) -> bool:
    """Whether a member got SIGTERM."""
    return any(seen.report.step is Step.LEAVING for seen in members.values())


def are_drained(members: Mapping[int, Seen], course: Course) -> bool:
    """Whether none of the members answers requests of this incarnation any more."""
    return all(
        seen.report.drained or seen.closed_at is not None or _has_failed(seen, course) for seen in members.values()
    )


def all_heard(members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> bool:
    """Whether none of the members is silent."""
    heard_of = [members.get(rank) for rank in range(size)]
    return all(seen is not None and now - seen.at < limits.silent for seen in heard_of)


def _may_begin(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> bool:
    if course.is_exhausted or now < course.not_before:
        return False
    are_there = all_heard(members, size, now, limits) and all(seen.closed_at is None for seen in members.values())
    return are_there and all(_waits(seen, course) for seen in members.values())


def _running(
    course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits, in_flight: int
) -> Course:
    since = now if course.failing_since is None else course.failing_since
    failed = list(_failures(course, members, size, since, now, limits))
    if course.failing_since is None:
        if not failed:
            return _serving(course, members, size, now, limits)
        course = replace(_unready(course, now), failing_since=now, in_flight=in_flight)
    if now - since < limits.settle and len(failed) < size:
        return course
    if not failed:  # a silent member came back in time
        return replace(course, failing_since=None)
    if any(_is_unheard(seen, course, since, now, limits) for seen in members.values()):
        return course  # what was heard may be a consequence of what happened there
    if is_leaving(members):  # whose end is no failure of the group
        return recalled(course)
    first = min([*failed, *_closed(course, members, since, now)], key=lambda found: found[:2])
    return _ended(course, first[2], since, now, limits)


def _serving(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> Course:
    runs = all(_runs(seen, course) for seen in members.values())
    if not (runs and all_heard(members, size, now, limits) and all(seen.report.started for seen in members.values())):
        return _unready(course, now)
    return course if course.ready else replace(course, ready=True, ready_since=now, unready_since=None, cause=None)


def _unready(course: Course, now: float) -> Course:
    return replace(course, ready=False, unready_since=now) if course.ready else course


def _runs(seen: Seen, course: Course) -> bool:
    return (seen.report.step, seen.report.incarnation) == (Step.RUNNING, course.incarnation)


_Found = tuple[bool, float, Cause]
"""Whether it is a consequence, when it was known, and what: the least of several is the cause."""


def _failures(
    course: Course, members: Mapping[int, Seen], size: int, since: float, now: float, limits: Limits
) -> Iterator[_Found]:
    """Of members that failed, started anew, or are lost; `since`: when the first of them was known."""
    for rank in range(size):
        seen = members.get(rank)
        if seen is None:
            yield True, now, Cause(rank, "", "", failures.group_member_lost(rank, "", limits.lost))
        elif _has_failed(seen, course):
            failure = seen.report.failure or failures.group_member_failed(rank, seen.hello.pod)
            yield is_consequence(failure), seen.since, _cause(seen, failure)
        elif now - seen.at >= limits.lost:
            yield seen.at > since, seen.at, _lost(seen, now)
        elif seen.report.incarnation != course.incarnation:  # its container started anew
            yield False, seen.since, _cause(seen, failures.group_member_restarted(rank, seen.hello.pod))


def _closed(course: Course, members: Mapping[int, Seen], since: float, now: float) -> Iterator[_Found]:
    """Of members whose connection ended, since their pod may have died. Without another failure they may connect
    again."""
    for seen in members.values():
        if seen.closed_at is not None and not _has_failed(seen, course):
            yield seen.closed_at > since, seen.closed_at, _lost(seen, now)


def _is_unheard(seen: Seen, course: Course, since: float, now: float, limits: Limits) -> bool:
    """Whether it has said nothing since a failure was known, and may yet turn out to be lost."""
    is_decided = _has_failed(seen, course) or seen.closed_at is not None or now - seen.at >= limits.lost
    return seen.at < since and not is_decided


def _has_failed(seen: Seen, course: Course) -> bool:
    return seen.report.step is Step.FAILED and seen.report.incarnation == course.incarnation


def is_consequence(failure: Failure) -> bool:
    """Whether it may be a consequence of what happened on another member; one that got a signal was hit itself."""
    return failure.reason in CONSEQUENCES and failure.signal is None


def _lost(seen: Seen, now: float) -> Cause:
    return _cause(seen, failures.group_member_lost(seen.hello.rank, seen.hello.pod, now - seen.at))


def _cause(seen: Seen, failure: Failure) -> Cause:
    return Cause(seen.hello.rank, seen.hello.pod, seen.hello.node, failure)


def _ended(course: Course, cause: Cause, since: float, now: float, limits: Limits) -> Course:
    """The next incarnation, with its back-off; none once the budget is used up."""
    after = replace(_next(course), cause=replace(cause, lost_requests=course.in_flight))
    until = since if course.unready_since is None else course.unready_since
    if course.ready_since is not None and until - course.ready_since >= limits.good:
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
    busy = [f"{rank} ({_doing(seen.report)})" for rank, seen in sorted(members.items()) if not _waits(seen, course)]
    return f"waiting until rank {', '.join(busy)} of the group can start" if busy else ""


def slowest(course: Course, members: Mapping[int, Seen]) -> str:
    """Which worker that starts vLLM is behind the leader, for people; empty where none is, and where the leader itself
    is behind, as its own progress says."""
    runs = [(position(seen.report.progress), rank) for rank, seen in members.items() if _runs(seen, course)]
    known = [(where, rank) for where, rank in runs if where is not None]
    if not known or max(known)[0] == (least := min(known))[0] or least[1] == 0:
        return ""
    return f"rank {least[1]} is behind ({members[least[1]].report.progress})"


def _doing(report: Report) -> str:
    return f"{report.step}: {report.progress}" if report.progress else str(report.step)


def _waits(seen: Seen, course: Course) -> bool:
    return (seen.report.step, seen.report.incarnation) == (Step.WAITING, course.incarnation)


def told(course: Course, members: Mapping[int, Seen], size: int, now: float, limits: Limits) -> GroupState:
    """What the leader says of its group."""
    waits, room = course.not_before - now, _MEMBERS_BYTES // size
    return GroupState(
        size,
        course.incarnation,
        tuple(_member_state(rank, seen, now, room) for rank, seen in sorted(members.items())),
        course.cause,
        sum(now - at < limits.budget_seconds for at in course.restarts),
        waits if waits > 0 and not (course.run or course.is_exhausted) else None,
        course.is_exhausted,
    )


def _member_state(rank: int, seen: Seen, now: float, most_bytes: int) -> MemberState:
    """What is said of a member, with its longest text cut until it has this many bytes of JSON."""
    report, hello = seen.report, seen.hello
    state = MemberState(rank, report.step, hello.pod, hello.node, report.progress, now - seen.at)
    while len(to_line(state.to_document()).encode()) > most_bytes:
        longest = max(("progress", "pod", "node"), key=lambda name: len(getattr(state, name)))
        state = replace(state, **{longest: getattr(state, longest)[: len(getattr(state, longest)) * 3 // 4]})
    return state
