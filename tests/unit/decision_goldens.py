"""Each decision of the tables about zero, gaps and rollouts, as it was recorded: what moves code keeps all of them.

A line a decision: what it writes and why, then what it says. Manifests and the status are hashes; a line that changed
is looked at in the test that has its name. `pytest tests/unit/operator --record-decisions` writes them anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmservice_operator.decision import Decision

FOLDER = Path(__file__).parent / "fixtures" / "decisions"
MODULES = ("zero", "zero_ends", "zero_order", "gap", "held", "rollouts", "rollback", "upgrade")


@dataclass
class Recorder:
    """The decisions of the test that runs, one after another."""

    lines: list[str] = field(default_factory=list)
    is_on: bool = False

    def add(self, decision: Decision) -> None:
        """As the line that the file has."""
        if self.is_on:
            self.lines.append(line(decision))


RECORDER = Recorder()


@contextmanager
def unrecorded() -> Iterator[None]:
    """For what only the first test that asks for it decides."""
    before, RECORDER.is_on = RECORDER.is_on, False
    try:
        yield
    finally:
        RECORDER.is_on = before


def line(decision: Decision) -> str:
    """All of a decision in one line."""
    found = [f"adopt {each.kind}/{each.name}" for each in decision.adopt]
    found += [f"cost {each.pod}={each.cost}" for each in decision.deletion_costs]
    for apply in decision.apply:
        how = (
            " forced" * (apply.known_uid is not None)
            + " expel" * apply.remove_foreign_fields
            + " optional" * apply.is_optional
        )
        found.append(f"apply {apply.kind}/{apply.name}{how} {digest(apply.manifest)} ({apply.reason})")
    found += [f"prune {each.kind}/{each.name} ({each.reason})" for each in decision.prune]
    found += [f"restart {decision.restart.strategy}"] if decision.restart is not None else []
    found += [f"event {each.reason} {digest(each.message)}" for each in decision.events]
    found += [f"ask {digest(repr(decision.asks))}"] if decision.asks else []
    found += [f"begun {decision.ongoing_rollout[0]}"] if decision.ongoing_rollout is not None else []
    found += [f"update {decision.update.value}"] if decision.update is not None else []
    found += ["unsettled"] * decision.is_unsettled + ["claims a turn"] * decision.claims_update
    found += [f"again in {decision.requeue_after:g}"] if decision.requeue_after is not None else []
    found += [f"note {note}" for note in decision.notes]
    if decision.status is not None:
        conditions = " ".join(f"{c['type']}={c['reason']}" for c in decision.status.get("conditions", ()))
        found.append(f"status {digest(decision.status)} {conditions}")
    return f"{digest(decision.desired)} " + "; ".join(found or ["-"])


def digest(value: Any) -> str:
    """Eight hex digits of its JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:8]


def path(module: str) -> Path | None:
    """The file of a test module; None: none is kept."""
    name = module.rpartition(".")[2].removeprefix("test_decide_")
    return FOLDER / f"{name}.json" if name in MODULES else None


def read(file: Path) -> dict[str, list[str]]:
    """By test; empty before the first record."""
    found: dict[str, list[str]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def write(file: Path, found: dict[str, list[str]]) -> None:
    """A line a decision."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(dict(sorted(found.items())), indent=0, ensure_ascii=False) + "\n")
