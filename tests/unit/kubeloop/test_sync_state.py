"""What is synced and what is in the way, for each namespace: when work may begin, and what is said meanwhile."""

from __future__ import annotations

import pytest
from kubeloop.errors import Forbidden, KubeError, NotFound, Refused, ServerError, TooManyRequests, Unreachable
from kubeloop.informer import SyncState, problem_of, watch_of
from kubeloop.resources import DEPLOYMENT, JOB
from llmservice_api.constants import LLMSERVICE

CHILDREN = (DEPLOYMENT, JOB)
WATCH = watch_of(LLMSERVICE)
PARTS = (WATCH, *(resource.full_name for resource in (LLMSERVICE, *CHILDREN)))
NO_RIGHT = Forbidden("no", right="list deployments.apps")


def state(*namespaces: str | None, warm: tuple[str | None, ...] = ()) -> SyncState:
    made = SyncState(namespaces, LLMSERVICE, CHILDREN)
    for namespace in warm:
        for part in PARTS:
            made.synced(namespace, part)
    return made


def test_one_that_only_takes_its_time_is_waited_for_and_one_with_a_problem_is_not() -> None:
    seen = state("blue", "green", warm=("blue",))
    assert seen.is_warm("blue")
    assert not seen.settled.is_set()
    seen.failed("green", DEPLOYMENT.full_name, NO_RIGHT)
    assert seen.settled.is_set()
    assert not seen.is_warm("green")
    nowhere = state("blue")
    nowhere.failed("blue", WATCH, NO_RIGHT)
    assert not nowhere.settled.is_set(), "problems everywhere are no reason to begin"


def test_work_begins_once_for_each_namespace() -> None:
    begun: list[str | None] = []
    seen = SyncState((None,), LLMSERVICE, CHILDREN, on_warm=begun.append)
    for part in (*PARTS, *PARTS):
        seen.synced(None, part)
    assert begun == [None]
    assert seen.is_warm("any")


LASTING: dict[str, tuple[KubeError | str, bool]] = {
    "a right is missing": (NO_RIGHT, True),
    "going away": (Refused("the namespace is being terminated"), True),
    "no CRD": (NotFound("none"), True),
    "kopf ended": ("RuntimeError: no login", True),
    "no answer": (Unreachable("no answer"), False),
    "too busy": (TooManyRequests("later"), False),
    "etcd is away": (ServerError("no"), False),
}


@pytest.mark.parametrize("case", LASTING)
def test_a_warm_namespace_goes_on_through_what_passes_and_says_so(case: str) -> None:
    error, lasts = LASTING[case]
    seen = state("blue", warm=("blue",))
    seen.failed("blue", WATCH, error)
    assert (list(seen.working()), len(seen.problems())) == ([] if lasts else ["blue"], 1)
    ((_, unwatched),) = seen.unwatched()
    assert (unwatched.forbidden, unwatched.broken) == (int(isinstance(error, Forbidden)), 1)
    seen.synced("blue", WATCH)
    assert dict(seen.unwatched())["blue"].broken == 0
    seen.synced("blue", WATCH)
    assert (list(seen.working()), seen.problems()) == (["blue"], [])


def test_a_kind_that_is_done_without_is_no_problem_and_is_reported_when_it_changes() -> None:
    changed: list[str | None] = []
    seen = SyncState(("blue",), LLMSERVICE, CHILDREN, on_hidden=changed.append)
    for _ in range(2):
        seen.hide("blue", JOB)
    assert (seen.hidden("blue"), seen.hidden("green")) == (frozenset({"Job"}), frozenset())
    assert changed == ["blue"]
    for _ in range(2):
        seen.show("blue", JOB)
    assert seen.hidden("blue") == frozenset()
    assert changed == ["blue", "blue"]


def test_the_same_problem_of_many_kinds_is_one_line_and_many_namespaces_are_cut_short() -> None:
    seen = state(*(f"team-{number}" for number in range(50)))
    for number in range(50):
        for part in (WATCH, LLMSERVICE.full_name):
            seen.failed(f"team-{number}", part, Forbidden("no", right="list llmservices"))
    lines = seen.problems()
    assert lines[-1] == "and 30 more"
    assert lines[0] == "namespace team-0: missing right: list llmservices"
    assert len(lines) == 21


def test_only_a_missing_right_is_reported_as_one() -> None:
    assert problem_of(NO_RIGHT) == "missing right: list deployments.apps"
    assert problem_of(Refused("the namespace is being terminated")).startswith("the namespace is being terminated")
