"""What must be true once nothing strikes any more. Each check returns what is wrong, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from llmservice_cli.probe import Mode
from llmservice_cli.probe.report import ProbedRequest

from tests.chaos import belongings
from tests.chaos.actions import KILLS, Desired, Step, Storm, kind_of
from tests.chaos.belongings import KINDS, Found
from tests.chaos.executor import Window
from tests.chaos.proxy import RUNNING_WATCH
from tests.support.cluster import JSON, Cluster
from tests.support.operator import operator_pods, resident_bytes
from tests.support.traffic import in_words

# By the words of the stand-in's failures; an engine that ends with 0 without a word has died.
REASONS: Mapping[str, frozenset[str]] = {
    "kv-cache-too-small": frozenset({"KVCacheTooSmall"}),
    "unsupported-architecture": frozenset({"UnsupportedArchitecture"}),
    "gpu-out-of-memory": frozenset({"GPUOutOfMemory"}),
    "exit-0": frozenset({"EngineDied", "StartupFailed", "CrashLoop"}),
}
# A container's limit in the chart is 512 MiB; at rest it takes about 100.
MEMORY_MIB = 300
# Seconds before the end of the load by which a probe that went on has sent its last request.
LAST_WITHIN = 10.0


def look(cluster: Cluster, namespace: str) -> Found:
    """Everything that a service may have."""
    return {plural: cluster.list(plural, namespace) for plural in KINDS}


def unlike(name: str, desired: Desired | None, found: Found) -> str:
    """How the service differs from what its spec asks for; nothing when it does not."""
    if desired is None:
        left = belongings.left(name, found)
        return f"it is still there: {left}" if left else ""
    service = next((item for item in found["llmservices"] if item["metadata"]["name"] == name), None)
    if service is None:
        return "it is not there"
    status = service.get("status", {})
    if status.get("observedGeneration") != service["metadata"]["generation"]:
        return f"generation {service['metadata']['generation']} was not looked at: {status.get('observedGeneration')}"
    seen = {each["type"]: each for each in status.get("conditions", [])}
    wrong = _reported_otherwise(desired, seen, status)
    if not wrong and not desired.paused and not desired.unknown_flag:
        # A spec that is refused or held changes nothing of what ran before; so nothing is asked of it then.
        wrong = belongings.unlike(name, desired, found)
    said = {kind: f"{each['status']} ({each['reason']})" for kind, each in sorted(seen.items())}
    return f"{wrong}; conditions {said}, failure {status.get('failure')}" if wrong else ""


def _reported_otherwise(desired: Desired, seen: Mapping[str, JSON], status: JSON) -> str:
    accepted = seen.get("Accepted", {}).get("status")
    if desired.unknown_flag:
        return "" if accepted == "False" else "an unknown flag was accepted"
    if desired.paused:
        return "" if any(each["reason"] == "Paused" for each in seen.values()) else "no condition says Paused"
    if accepted != "True":
        return "it was not accepted"
    if desired.fails and desired.replicas:
        reason = (status.get("failure") or {}).get("reason")
        return "" if reason in REASONS[desired.fails] else f"the failure should be one of {set(REASONS[desired.fails])}"
    return "" if seen.get("Ready", {}).get("status") == "True" else "it is not Ready"


def memory(cluster: Cluster) -> dict[str, float]:
    """Resident MiB of each of the operator's pods."""
    return {str(pod["metadata"]["name"]): round(resident_bytes(pod) / 2**20, 1) for pod in operator_pods(cluster)}


def not_sent(name: str, rows: Sequence[ProbedRequest], began: float, ended: float, rate: float) -> str:
    """How the load on a service fell short: nothing is lost of what was never sent."""
    sent = [row for row in rows if began <= row.sent <= ended]
    least = rate * (ended - began) / 2
    if len(sent) < least:
        return f"{name}: {len(sent)} requests in {ended - began:.0f} s, {least:.0f} are the least"
    silent = ended - max(row.sent for row in sent)
    if silent > LAST_WITHIN:
        return f"{name}: nothing was sent in the last {silent:.0f} s"
    missing = set(Mode) - {row.mode for row in sent}
    return f"{name}: nothing was sent as {', '.join(sorted(missing))}" if missing else ""


def lost_without_excuse(name: str, rows: Iterable[ProbedRequest], windows: Iterable[Window]) -> list[str]:
    """Lost requests that were not under way in any window of their service."""
    mine = [window for window in windows if window.name == name]
    return [
        f"{name}: {in_words(row)}"
        for row in rows
        if not row.is_complete and not any(row.sent <= window.ended and window.began <= row.ended for window in mine)
    ]


def not_struck(steps: Iterable[Step], struck: Counter[str], fallen: Counter[str]) -> list[str]:
    """Faults and kills of the plan that never came to be: a run without them has shown nothing about them."""
    storms = [action for step in steps if isinstance(action := step.action, Storm)]
    faults = {str(kind) for storm in storms for kind, _ in storm.shares}
    if any(storm.weather.hangs_up for storm in storms):
        faults.add(RUNNING_WATCH)
    kills = KILLS & {kind_of(step.action) for step in steps}
    return sorted(fault for fault in faults if not struck[fault]) + sorted(kill for kill in kills if not fallen[kill])
