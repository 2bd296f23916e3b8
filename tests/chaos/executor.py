"""Carries the steps out on the cluster, and remembers what was done when."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import httpx

from tests.chaos.actions import (
    Action,
    Apply,
    Delete,
    DeleteOperatorPod,
    EndPod,
    ForeignDelete,
    ForeignEdit,
    KillOperator,
    RefusedEdit,
    Restart,
    SkewLease,
    Step,
    Storm,
    kind_of,
)
from tests.chaos.plan import PROBED
from tests.chaos.proxy import FaultyWay
from tests.support.clock import now
from tests.support.cluster import COLLECTIONS, JSON, SOMEBODY, Cluster, eventually, is_ready
from tests.support.host import pause, without
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, host_process, operator_pods

# The API server is away for five seconds at the most, and etcd's leader takes a moment.
ANSWERS_WITHIN = 60.0
# A killed server's requests are lost until kubelet, endpoint controller and kube-proxy have had their turns.
KNOWN_WITHIN = 10.0
# Its controllers watch again after pauses that grow to half a minute; until then a pod that ends goes on being asked.
CATCHES_UP_WITHIN = 60.0


class Missed(str):
    """Why a blow fell on nothing."""

    __slots__ = ()


@dataclass(frozen=True)
class Window:
    """When requests on a service may be lost in principle, and why."""

    name: str
    began: float
    ended: float
    why: str


@dataclass(frozen=True)
class Unnoticed:
    """A pod under load that was reported to end soon after a component was away."""

    name: str
    pod: str
    since: float
    component: str


@dataclass
class Executor:
    """One run's hand on the cluster."""

    cluster: Cluster
    namespace: str
    way: FaultyWay
    began: float
    ended: float = 0.0
    windows: list[Window] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    fallen: Counter[str] = field(default_factory=Counter)
    _back: tuple[str, float] = ("", 0.0)
    """Which component was away last, and when it came back."""
    _unnoticed: list[Unnoticed] = field(default_factory=list)
    _taken_for_lost: list[float] = field(default_factory=list)
    """When the cluster took a node for lost, of which nothing says yet that its pods are asked again."""
    _reported_names: set[str] = field(default_factory=set)

    def execute(self, step: Step) -> None:
        """At its time or, where the one before took longer, at once."""
        pause(max(0.0, self.began + step.at - now()))
        what = self._do(step.action)
        if not isinstance(what, Missed):
            self.fallen[kind_of(step.action)] += 1
        line = f"{now() - self.began:7.1f} s  {in_words(step.action)}" + (f": {what}" if what else "")
        self.log.append(line)
        print(line, flush=True)
        self.all_noticed()

    def all_noticed(self) -> bool:
        """Whether the endpoint controller has reported every end; those that it has reported get their windows."""
        self._notice_nodes()
        for end in [end for end in self._unnoticed if not self._is_reported_ready(end)]:
            self._unnoticed.remove(end)
            why = f"a pod ended soon after {end.component} was away"
            self.windows.append(Window(end.name, end.since, now() + KNOWN_WITHIN, why))
        return not self._unnoticed and not self._taken_for_lost

    def _notice_nodes(self) -> None:
        """A node whose kubelet cannot renew its lease, with etcd away, is taken for lost, and no pod of it is asked."""
        reasons = "involvedObject.kind=Node,reason=NodeNotReady"
        answer = self._ask("GET", "/api/v1/namespaces/default/events", params={"fieldSelector": reasons})
        for event in answer.raise_for_status().json()["items"]:
            moment = event["lastTimestamp"]
            if moment not in self._reported_names and (at := datetime.fromisoformat(moment).timestamp()) >= int(
                self.began
            ):
                self._taken_for_lost.append(at)
            self._reported_names.add(moment)
        if self._taken_for_lost and all(self._is_settled(name) for name in PROBED):
            began, ended = min(self._taken_for_lost), now() + KNOWN_WITHIN
            self.windows += [Window(name, began, ended, "the cluster took the node for lost") for name in PROBED]
            self._taken_for_lost.clear()

    def _is_reported_ready(self, end: Unnoticed) -> bool:
        slices = self._items("endpointslices", f"kubernetes.io/service-name={end.name}")
        endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
        return any(e["targetRef"]["name"] == end.pod and e["conditions"].get("ready") for e in endpoints)

    def _ends(self, name: str, pod: str, since: float) -> None:
        component, back = self._back
        if name in PROBED and since - back < CATCHES_UP_WITHIN:
            self._unnoticed.append(Unnoticed(name, pod, since, component))

    def _do(self, action: Action) -> str:
        match action:
            case Apply(name, desired):
                return self._apply(name, desired.manifest(name))
            case RefusedEdit(name):
                return self._refused(name)
            case Delete(name, cascade):
                return self._delete("llmservices", name, cascade)
            case ForeignEdit(name, plural, patch):
                return self._foreign_edit(name, plural, patch)
            case ForeignDelete(name, plural):
                return self._foreign_delete(name, plural)
            case EndPod(name, pick, how):
                return self._end_pod(name, pick, how)
            case KillOperator(pick):
                return self._kill_operator(pick)
            case DeleteOperatorPod(pick):
                return self._delete_operator_pod(pick)
            case Restart(component, how, seconds):
                return self._restart(component, how, seconds)
            case SkewLease(seconds):
                return self._skew(seconds)
            case Storm():
                self.way.turn(action.weather)
                return ""

    def _ask(self, method: str, path: str, **rest: Any) -> httpx.Response:
        """Until the API server answers: it may be the one that was struck."""
        deadline = time.monotonic() + ANSWERS_WITHIN
        while True:
            try:
                answer = self.cluster.api.request(method, path, **rest)
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
            else:
                if answer.status_code < 500 or time.monotonic() > deadline:
                    return answer
            pause(0.2)

    def _path(self, plural: str, name: str, namespace: str = "") -> str:
        return f"{COLLECTIONS[plural]}/namespaces/{namespace or self.namespace}/{plural}/{name}"

    def _patch(self, path: str, body: object, kind: str, **params: str) -> httpx.Response:
        headers = {"Content-Type": kind}
        return self._ask("PATCH", path, params=params, content=json.dumps(body), headers=headers)

    def _items(self, plural: str, selector: str, namespace: str = "") -> list[JSON]:
        path = self._path(plural, "", namespace).rstrip("/")
        answer = self._ask("GET", path, params={"labelSelector": selector}).raise_for_status()
        items: list[JSON] = answer.json()["items"]
        return items

    # The services

    def _apply(self, name: str, manifest: JSON) -> str:
        self._await_end(name)
        params = {"fieldManager": "chaos", "force": "true"}
        answer = self._patch(self._path("llmservices", name), manifest, "application/apply-patch+yaml", **params)
        assert answer.status_code in (200, 201), answer.text
        return "" if answer.status_code == 200 else "created"

    def _await_end(self, name: str) -> None:
        """One that is being deleted in the foreground can be written to, and goes all the same."""

        def gone() -> bool:
            answer = self._ask("GET", self._path("llmservices", name))
            return answer.status_code == 404 or "deletionTimestamp" not in answer.json()["metadata"]

        eventually(f"the end of {name}", gone, 120)

    def _refused(self, name: str) -> str:
        body = {"spec": {"batching": {"maxNumSeqs": -1}}}
        answer = self._patch(self._path("llmservices", name), body, "application/merge-patch+json")
        assert answer.status_code == 422, answer.text
        return ""

    def _delete(self, plural: str, name: str, cascade: str, grace: int | None = None, namespace: str = "") -> str:
        options = {"propagationPolicy": cascade} | ({} if grace is None else {"gracePeriodSeconds": grace})
        answer = self._ask("DELETE", self._path(plural, name, namespace), content=json.dumps(options))
        assert answer.status_code in (200, 202, 404), answer.text
        return Missed("there was none") if answer.status_code == 404 else ""

    # Its children

    def _foreign_edit(self, name: str, plural: str, patch: Mapping[str, Any]) -> str:
        answer = self._patch(
            self._path(plural, name), patch, "application/strategic-merge-patch+json", fieldManager=SOMEBODY
        )
        assert answer.status_code in (200, 404, 409), answer.text
        return "" if answer.status_code == 200 else Missed(f"HTTP {answer.status_code}")

    def _foreign_delete(self, name: str, plural: str) -> str:
        if plural != "controllerrevisions":
            return self._delete(plural, name, "Background")
        found = self._items(plural, f"llmservice.dev/service={name}")
        for item in found[:1]:
            return self._delete(plural, item["metadata"]["name"], "Background")
        return Missed("there was none")

    def _pods(self, name: str) -> list[JSON]:
        pods = self._items("pods", f"llmservice.dev/service={name}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _end_pod(self, name: str, pick: int, how: str) -> str:
        pods = self._pods(name)
        if not pods:
            return Missed("there was none")
        pod = sorted(pods, key=lambda each: str(each["metadata"]["name"]))[pick % len(pods)]["metadata"]["name"]
        if how == "evict":
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
            answer = self._ask("POST", f"{self._path('pods', pod)}/eviction", content=json.dumps(body))
            assert answer.status_code in (200, 201, 404, 429), answer.text
            if answer.is_error:
                return Missed(f"{pod}: not now")
            self._ends(name, pod, now())
            return str(pod)
        if how == "kill":
            self.windows.append(Window(name, now(), now() + KNOWN_WITHIN, "a killed pod"))
            self._ends(name, pod, now())
        return self._delete("pods", pod, "Background", grace=0 if how == "kill" else None) or str(pod)

    # The operator and the control plane

    def _operator_pod(self, pick: int) -> JSON | None:
        self._ask("GET", "/readyz")
        pods = sorted(operator_pods(self.cluster), key=lambda pod: str(pod["metadata"]["name"]))
        return pods[pick % len(pods)] if pods else None

    def _kill_operator(self, pick: int) -> str:
        pod = self._operator_pod(pick)
        if pod is None:
            return Missed("there was none")
        try:
            os.kill(host_process(self.cluster, pod), signal.SIGKILL)
        except AssertionError:
            return Missed("it did not run")
        return str(pod["metadata"]["name"])

    def _delete_operator_pod(self, pick: int) -> str:
        pod = self._operator_pod(pick)
        if pod is None:
            return Missed("there was none")
        name = str(pod["metadata"]["name"])
        return self._delete("pods", name, "Background", namespace=OPERATOR_NAMESPACE) or name

    def _restart(self, component: str, how: Literal["stop", "kill"], seconds: float) -> str:
        """What is ending while nobody can say so goes on being asked: only then may a restart lose something."""
        began = now()
        unsettled = [name for name in PROBED if not self._is_settled(name)]
        with without(self.cluster, component, how):
            pause(seconds)
        self._back = component, now()
        ended = now() + KNOWN_WITHIN
        self.windows += [Window(name, began, ended, f"a pod ended while {component} was away") for name in unsettled]
        for name in unsettled:
            for pod in self._items("pods", f"llmservice.dev/service={name}"):
                if "deletionTimestamp" in pod["metadata"]:
                    self._ends(name, pod["metadata"]["name"], began)
        return f"while pods of {', '.join(unsettled)} came and went" if unsettled else ""

    def _is_settled(self, name: str) -> bool:
        pods = self._items("pods", f"llmservice.dev/service={name}")
        return all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)

    def _skew(self, seconds: int) -> str:
        moment = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        path = self._path("leases", OPERATOR, OPERATOR_NAMESPACE)
        body = {"spec": {"renewTime": moment, "acquireTime": moment}}
        answer = self._patch(path, body, "application/merge-patch+json", fieldManager=SOMEBODY)
        assert answer.status_code in (200, 404, 409), answer.text
        return ""


def in_words(action: Action) -> str:
    """As the log and the plan show it."""
    match action:
        case Apply(name, desired, why):
            return f"{name}: {why} {desired}"
        case Storm(shares):
            return "storm: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares) if shares else "calm"
        case _:
            return str(action)
