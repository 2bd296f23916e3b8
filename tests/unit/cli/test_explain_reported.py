"""Where `llmservice explain` says that a reason is reported, beside where the code names it and what statuses have."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from llmservice_api.conditions import ConditionType
from llmservice_api.reasons import Reason
from llmservice_cli.explain.reported import Place, places_of, reported
from llmservice_runtime.failures.reasons import FailureReason

from tests.support.documents import ROOT
from tests.unit.status_states import CASES, state

PACKAGES = (
    "operator/llmservice_api",
    "operator/llmservice_planner",
    "operator/llmservice_operator",
    "runtime/llmservice_runtime",
    "operator/llmservice_activator",
    "runtime/llmservice_fetch",
)
API, PLANNER, OPERATOR, RUNTIME, ACTIVATOR, FETCH = PACKAGES
BY_CALL: Mapping[str, Place] = {"Event": Place.EVENT, "RolloutStep": Place.EVENT, "Problem": Place.PROBLEM}
"""What a reason stands for as an argument of these, wherever that is. An Obstacle is a HOLD or a WAIT."""
CONDITIONS = f"{OPERATOR}/service/status.py"
BY_PLACE: Mapping[str, Place | None] = {
    f"{API}/errors.py": Place.PROBLEM,
    f"{API}/matrix/": Place.PROBLEM,
    f"{PLANNER}/": Place.PROBLEM,
    f"{OPERATOR}/manifests/children.py:why_no_scaled_object": Place.AUTOSCALED,
    f"{OPERATOR}/behaviours/autoscaling.py": Place.AUTOSCALED,
    f"{OPERATOR}/behaviours/routing.py": Place.ROUTED,
    f"{OPERATOR}/behaviours/gateway.py": Place.ROUTED,
    f"{OPERATOR}/behaviours/fit/assess.py": Place.FIT,
    f"{OPERATOR}/observe/verdict.py": Place.FIT,
    f"{OPERATOR}/observe/failures/": Place.FAILURE,
    f"{OPERATOR}/facts/scheduling.py": Place.FAILURE,
    f"{OPERATOR}/observe/progress.py": Place.WAIT,
    f"{OPERATOR}/service/reconcile.py": Place.INTERNAL,
    f"{OPERATOR}/service/decide.py:_found": Place.DEGRADED,
    f"{RUNTIME}/": Place.FAILURE,
    f"{FETCH}/": Place.FAILURE,
    f"{ACTIVATOR}/events.py": Place.EVENT,
    f"{ACTIVATOR}/holding_config.py": None,  # an answer to a client
    f"{CONDITIONS}:_accepted": Place.ACCEPTED,
    f"{CONDITIONS}:_available": Place.AVAILABLE,
    f"{CONDITIONS}:_ready_reason": Place.UNREADY,
}
"""By the beginning of file:function; the longest counts. None: it is reported nowhere."""
SILENT = {Reason.POLICY_IGNORE, Reason.INSPECTING_MODEL}
"""Of which `service/status.py` makes no Event as a verdict."""
BY_REASON: Mapping[tuple[str, Reason], tuple[Place, ...]] = {
    (f"{CONDITIONS}:_ready_reason", Reason.ROLLED_OUT): (Place.AS_ASKED,),
    (f"{CONDITIONS}:_ready_reason", Reason.PROGRESSING): (Place.WAIT,),
    (f"{CONDITIONS}:_at_zero", Reason.SCALED_TO_ZERO): (Place.AVAILABLE, Place.AS_ASKED),
    (f"{CONDITIONS}:_at_zero", Reason.IDLE): (Place.AVAILABLE, Place.AS_ASKED),
    (f"{OPERATOR}/behaviours/rollout.py:_waits", Reason.WAITING_FOR_GPU): (Place.WAIT, Place.HOLD),  # when late
    # Final when late; status.failure by observe/failures/failure.py.
    (f"{OPERATOR}/children.py:_unanswered", Reason.API_SERVER_FAILING): (Place.WAIT, Place.HOLD, Place.FAILURE),
}


@dataclass(frozen=True)
class Use:
    """A reason that the code names as a value: in no comparison, no set of some, and not for its texts."""

    reason: Reason
    place: str
    calls: Sequence[str]
    """From the inside out, of which it is an argument."""
    is_final: bool

    def places(self) -> tuple[Place, ...]:
        if (self.place, self.reason) in BY_REASON:
            return BY_REASON[self.place, self.reason]
        if "Obstacle" in self.calls:
            return (Place.HOLD if self.is_final else Place.WAIT,)
        if found := [BY_CALL[call] for call in self.calls if call in BY_CALL]:
            return (found[0],)
        known = [begin for begin in BY_PLACE if self.place.startswith(begin)]
        assert known, f"{self.place} names {self.reason}: say in BY_PLACE what that stands for"
        place = BY_PLACE[max(known, key=len)]
        if place is Place.FIT and self.reason in SILENT:
            return (Place.NO_VERDICT,)
        return () if place is None else (place,)


def uses_in(path: Path) -> Iterator[Use]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {
        alias.asname or alias.name: alias.name
        for node in imported
        for alias in node.names
        if alias.name == "FailureReason" or (node.module, alias.name) == ("llmservice_api.reasons", "Reason")
    }
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            kind = Reason if known[node.value.id] == "Reason" else FailureReason
            use = _use(node, parents, Reason(kind[node.attr]), path.relative_to(ROOT).as_posix())
            if use is not None:
                yield use


def _use(node: ast.AST, parents: Mapping[ast.AST, ast.AST], reason: Reason, file: str) -> Use | None:
    calls, is_final, function = [], True, ""
    while node in parents and not function:
        inner, node = node, parents[node]
        if isinstance(node, ast.Compare | ast.Attribute):
            return None
        if isinstance(node, ast.Call) and inner is not node.func:
            calls.append(ast.unparse(node.func).rpartition(".")[2])
            is_final = is_final and all(keyword.arg != "is_final" for keyword in node.keywords)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
    if not function and (not calls or {"frozenset", "enumerate"} & {*calls}) and is_a_choice(file, calls):
        return None
    return Use(reason, f"{file}:{function}", calls, is_final)


def is_a_choice(file: str, calls: Sequence[str]) -> bool:
    """Constants of a module that only tell reasons apart. Those of two files are what is reported."""
    return bool({"frozenset", "enumerate"} & {*calls}) or file == CONDITIONS


@cache
def in_code() -> Mapping[Reason, frozenset[Place]]:
    found: dict[Reason, set[Place]] = {reason: set() for reason in Reason}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for use in uses_in(path):
                found[use.reason] |= {*use.places()}
    return {reason: frozenset(places) for reason, places in found.items()}


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_reported_where_the_code_names_it(reason: Reason) -> None:
    def named(places: frozenset[Place]) -> list[str]:
        return sorted(place.name for place in places)

    assert named(places_of(reason)) == named(in_code()[reason]), "cli/llmservice_cli/explain/reported.py"


@pytest.mark.parametrize("name", CASES)
def test_every_status_has_reasons_where_they_are_said_to_be(name: str) -> None:
    status = state(name).obj["status"]
    for condition in status["conditions"]:
        where = reported(Reason(condition["reason"]))
        assert ConditionType(condition["type"]) in where.conditions, condition
    if failure := status.get("failure"):
        assert reported(Reason(failure["reason"])).is_failure, failure
