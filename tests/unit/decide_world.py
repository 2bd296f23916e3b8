"""A stand-in for the cluster around one LLMService: decisions go in, objects as the API server shows them come out."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from llmservice_api.constants import CHILD_KINDS, UPDATE_REQUESTED_ANNOTATION
from llmservice_api.holding import Activators, HoldingReport, PortClaim
from llmservice_api.service import LLMService
from llmservice_operator.decision import (
    Decision,
    GroupTurn,
    Inputs,
    Part,
    Requirements,
    UpdatePermission,
)
from llmservice_operator.facts.children import (
    ChildFacts,
    ClaimFacts,
    ClaimTemplateFacts,
    HoldingSliceFacts,
    JobFacts,
    RevisionFacts,
    ServiceFacts,
)
from llmservice_operator.facts.inspections import InspectionFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import AT_ZERO_SECONDS, Reports
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import Observed, Refusal, Report, facts_of
from llmservice_operator.service.decide import decide
from llmservice_operator.workload.deployment import DeploymentFacts
from llmservice_operator.workload.kinds import workloads_of
from llmservice_operator.workload.leaderworkerset import LeaderWorkerSetFacts
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.devices import ClusterDevices
from llmservice_planner.model import reading
from llmservice_planner.model.reading import ConfigReading
from llmservice_planner.room import Quota, Quotas, Room

from tests.unit.decision_goldens import RECORDER

Json = dict[str, Any]

UID = "11111111-1111-4111-8111-111111111111"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = Settings(operator_image="llmservice-operator:1", default_gpu_image="vllm/vllm-openai:v0.32.0")
FIVE_LINES: Json = {"model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct"}, "scaling": {"replicas": 1}}
# As Qwen2.5-7B-Instruct's config.json says.
QWEN_7B: Json = {"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}
QWEN_7B |= {"vocab_size": 152064, "intermediate_size": 18944, "max_position_embeddings": 32768}
FIXTURES = Path(__file__).parent / "fixtures"

FACTS: Mapping[str, type[ChildFacts]] = {
    cls.kind: cls
    for cls in (
        ServiceFacts,
        DeploymentFacts,
        LeaderWorkerSetFacts,
        ClaimFacts,
        ClaimTemplateFacts,
        JobFacts,
        RevisionFacts,
        HoldingSliceFacts,
    )
} | {child.kind: facts_of(child.kind) for child in CHILD_KINDS}


def spec(**changes: Any) -> Json:
    """The five-line spec with whole sections replaced."""
    return copy.deepcopy(FIVE_LINES) | changes


def stored(value: Any) -> Any:
    """As the API server gives it back: it knows no 1.0."""
    return json.loads(json.dumps(value), parse_float=lambda text: int(n) if (n := float(text)).is_integer() else n)


def an_llmservice(spec: Json | None = None, **metadata: Any) -> Json:
    """A stored LLMService."""
    return {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "x", "namespace": "team-a", "uid": UID, "generation": 1, "resourceVersion": "1"}
        | metadata,
        "spec": copy.deepcopy(FIVE_LINES) if spec is None else spec,
    }


def of_the_deployment(pod: Json) -> Json:
    """The same pod, which has its service's label, as of the service's Deployment."""
    metadata = pod["metadata"]
    metadata["labels"] = metadata["labels"] | {"pod-template-hash": "1"}
    name = f"{metadata['labels']['llmservice.dev/service']}-1"
    metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": name, "uid": "uid-of-a-set", "controller": True}]
    return pod


def of_another(pod: Json) -> Json:
    """The same pod as of an Argo Rollout that has the service's name, whose ReplicaSets are named alike."""
    labels = of_the_deployment(pod)["metadata"]["labels"]
    labels["rollouts-pod-template-hash"] = labels.pop("pod-template-hash")
    return pod


GRANTED = UpdatePermission(is_granted=True)
OWN_TURN = GroupTurn(is_own=True)
ALLOTTED = PortClaim(20_000)


@dataclass
class World:
    """One LLMService, its children and its pods."""

    obj: Json = field(default_factory=an_llmservice)
    children: dict[tuple[str, str], Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    """Names of ready pods that the Service's slices do not list."""
    routers: int = 0
    """Ready pods of the router."""
    is_blind: bool = False
    """No right on slices."""
    unsettled_for: float = inf
    refused: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    reports: dict[str, Report] = field(default_factory=dict)
    inspections: list[Json] = field(default_factory=list)
    """Pods of Jobs that look at the model."""
    sibling_model: Json = field(default_factory=lambda: {"config": json.dumps(QWEN_7B)})
    """What another service of the namespace knows of the model; by default all there is to know."""
    gpus: ClusterGPUs = field(default_factory=ClusterGPUs)
    """What a look at the nodes shows; by default there is none with a GPU."""
    devices: ClusterDevices = field(default_factory=ClusterDevices)
    """What drivers publish; by default nothing."""
    room: Room = field(default_factory=Room)
    """What is free; by default there is no node."""
    node_reads: int = 0
    events: dict[str, list[Json]] = field(default_factory=dict)
    """What Events say of pods, by name."""
    event_reads: int = 0
    room_reads: int = 0
    quotas: list[Json] | None = field(default_factory=list)
    """The ResourceQuotas of the namespace; None: they cannot be listed just now."""
    quota_reads: int = 0
    in_flight: dict[str, int] = field(default_factory=dict)
    """Requests in flight of the pods that answer."""
    activators: Activators = None
    """Those that are ready; None: not known."""
    unknown_for: float = 0.0
    """Seconds for which they have not been known."""
    claim: PortClaim = ALLOTTED
    """What comes of allotting a port."""
    holding: dict[str, HoldingReport] = field(default_factory=dict)
    """What activators report, by address; the others do not answer."""
    asked_for: float = 5.0
    """Seconds since they were first asked, and for which the slices have been as they are."""
    unable_for: float = 0.0
    """Seconds between the first and the last time in a row that an activator reported that it cannot hold."""
    update_permission: UpdatePermission = GRANTED
    """Whether an update that is asked for may begin."""
    group_turn: GroupTurn = OWN_TURN
    ongoing_rollout: tuple[str, str] | None = None
    """What the decision before this one said of the rollout that it began."""
    settings: Settings = SETTINGS
    now: datetime = NOW
    status_writes: int = 0
    _serial: int = 0

    def service(self) -> LLMService:
        return LLMService.from_object(self.obj)

    def observed(self) -> Observed:
        by_kind: dict[str, list[Any]] = {kind: [] for kind in FACTS}
        for (kind, _), child in self.children.items():
            if kind in FACTS:  # the others are not read
                by_kind[kind].append(FACTS[kind].from_object(child))
        workloads = workloads_of({kind: {each.name: each for each in found} for kind, found in by_kind.items()}, "x")
        of_routing = [each for found in by_kind.values() for each in found if each.name in ("x-direct", "x-router")]
        by_kind = {kind: [each for each in found if each not in of_routing] for kind, found in by_kind.items()}
        only = {kind: (facts[0] if facts else None) for kind, facts in by_kind.items()}
        is_routed = only["Service"] is not None and only["Service"].selects_routers
        return Observed(
            workloads=workloads,
            service=only["Service"],
            claims=tuple(by_kind["PersistentVolumeClaim"]),
            claim_templates=tuple(by_kind["ResourceClaimTemplate"]),
            routing=tuple(of_routing),
            has_ready_router=is_routed and self.routers > 0,
            slices=tuple(each for each in by_kind["EndpointSlice"] if "-activator-" in each.name),
            past_router=tuple(each for each in by_kind["EndpointSlice"] if "-replicas-" in each.name),
            others=tuple(facts for kind in CHILD_KINDS if kind.kind not in self.hidden for facts in by_kind[kind.kind]),
            revisions=tuple(by_kind["ControllerRevision"]),
            pods=tuple(PodFacts.from_object(pod) for pod in self.pods.values()),
            inspection_jobs=tuple(by_kind["Job"]),
            inspections=tuple(InspectionFacts.from_object(pod) for pod in self.inspections),
            endpoints=None if self.is_blind else self.endpoints(),
            unsettled_for=self.unsettled_for,
            refused=dict(self.refused),
            hidden=self.hidden,
            reports=dict(self.reports),
            ongoing_rollout=self.ongoing_rollout,
        )

    def endpoints(self) -> frozenset[str]:
        """What the endpoint slice controller makes of the pods."""
        pods = (PodFacts.from_object(pod) for pod in self.pods.values())
        return frozenset(pod.uid for pod in pods if pod.ready and not pod.deleting and pod.name not in self.unlisted)

    def inputs(self, observed: Observed | None = None, **parts: Any) -> Inputs:
        """With all that a decision needs, as the operator gathers it, and with `parts` whether it needs them or not."""
        return self._decided(observed, parts)[0]

    def _decided(self, observed: Observed | None, parts: Mapping[str, Any]) -> tuple[Inputs, Decision]:
        known = {name: Part(value, "the test") for name, value in parts.items()}
        found = observed or self.observed()
        holders: dict[str, Any] = {"activators": self.activators, "unknown_for": self.unknown_for}
        inputs = Inputs.of(self.obj, found, self.settings, self.now, **holders, **known)
        while isinstance(needed := decide(inputs), Requirements):
            assert needed, "something is to be read"
            read: dict[str, Any] = {}
            if needed.gpus is not None:
                self.node_reads += 1
                read["gpus"] = self.gpus
            if needed.room is not None:
                self.room_reads += 1
                read["room"] = self.room
            if needed.pod_events:
                self.event_reads += 1
                read["pod_events"] = PodEvents.of({pod: self.events.get(pod, []) for pod in needed.pod_events})
            if needed.reading is not None:
                read["reading"] = ConfigReading(needed.reading, reading.read(needed.reading))
            if needed.devices is not None:
                read["devices"] = self.devices
            if needed.group_turn:
                read["group_turn"] = self.group_turn
            if needed.update_permission:
                read["update_permission"] = self.update_permission
            if needed.in_flight:
                read["in_flight"] = {
                    name: self.in_flight[name] for name, _ in needed.in_flight if name in self.in_flight
                }
            if needed.port:
                read["port_claim"] = self.claim
            if needed.holding:
                reports = {each: self.holding.get(each, HoldingReport()) for each in needed.holding.addresses}
                times = self.asked_for, self.asked_for, self.asked_for
                read["holding"] = Reports(reports, *times, unable_for=self.unable_for, due_in=AT_ZERO_SECONDS)
            if needed.quotas:
                self.quota_reads += 1
                read["quotas"] = self.quotas_now()
            if needed.sibling_model is not None:
                assert self.sibling_model is not None, "the test does not say what siblings know"
                read["sibling_model"] = (
                    {**self.sibling_model, "inspection": needed.sibling_model} if self.sibling_model else {}
                )
            assert all(getattr(inputs, name) is None for name in read), "each part is read once"
            inputs = inputs.with_parts({name: Part(value, "the test") for name, value in read.items()})
        return inputs, needed

    def quotas_now(self) -> Quotas | None:
        """What is read of them, with the pods that there are."""
        if self.quotas is None:
            return None
        asked = tuple(pod.asked for pod in self.observed().pods)
        return Quotas(tuple(quota for quota in map(Quota.from_object, self.quotas) if quota is not None), asked)

    def decide(self, observed: Observed | None = None, **parts: Any) -> Decision:
        """`observed` is `self.observed()`, where that is at hand; `parts` as for `inputs`."""
        return self._decided(observed, parts)[1]

    def step(self) -> Decision:
        """Decide once and carry it out."""
        decision = self.decide()
        RECORDER.add(decision)
        for apply in decision.apply:
            self._apply(apply.manifest)
        for prune in decision.prune:
            assert prune.uid in (None, self.children[prune.kind, prune.name]["metadata"]["uid"])
            del self.children[prune.kind, prune.name]
        if decision.status is not None:
            self.obj["status"] = stored(decision.status)
            self.status_writes += 1
        return decision

    def settle(self) -> None:
        """Until there is nothing left to do; a decision that never ends fails the test."""
        for _ in range(5):
            if self.step().is_steady:
                return
        raise AssertionError(f"never steady: {self.decide()}")

    def edit(self, **changes: Any) -> None:
        """Replace sections of the spec, as a user would."""
        self.obj["spec"] |= changes
        self.obj["metadata"]["generation"] += 1

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        """Close enough to server-side apply where nobody else writes: what is asked for replaces what was."""
        applied = stored(manifest)
        where = (applied["kind"], applied["metadata"]["name"])
        old = self.children.get(where)
        self._serial += 1
        meta = applied["metadata"]
        meta["resourceVersion"] = str(self._serial)
        meta["managedFields"] = [{"manager": "llmservice-operator", "operation": "Apply", "fieldsV1": {}}]
        meta["uid"] = old["metadata"]["uid"] if old else f"uid-{self._serial}"
        if old is not None and applied["kind"] == "ControllerRevision":
            assert applied["data"] == old["data"], "the data of a ControllerRevision cannot be changed"
        meta["creationTimestamp"] = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        generation = old["metadata"]["generation"] if old else 0
        is_changed = old is None or old.get("spec") != applied.get("spec")
        meta["generation"] = generation + (1 if is_changed else 0)
        if old is not None and "status" in old:
            applied["status"] = old["status"]
        self.children[where] = applied

    @property
    def deployment(self) -> Json:
        return self.children["Deployment", "x"]

    def revision(self) -> str:
        label: str = self.template["metadata"]["labels"]["llmservice.dev/revision"]
        return label

    def roll_out(self, **counts: int) -> None:
        """What the Deployment controller reports; by default everything is rolled out."""
        wanted = self.deployment["spec"]["replicas"]
        status = {"replicas": counts.get("replicas", wanted)}
        status |= {f"{name}Replicas": counts.get(name, wanted) for name in ("updated", "ready", "available")}
        self.deployment["status"] = status | {"observedGeneration": self.deployment["metadata"]["generation"]}
        if not counts:
            self.pods = {f"x-{n}": a_pod(f"x-{n}", self.revision(), ready=True) for n in range(wanted)}

    def serve(self) -> None:
        """Rolled out, and steady."""
        self.settle()
        self.roll_out()
        self.settle()

    def change(self, **sections: Any) -> None:
        """An edit, until it is carried out."""
        self.edit(**sections)
        self.settle()

    def request_update(self, value: str = "now") -> None:
        """By the annotation, until it is carried out."""
        self.obj["metadata"]["annotations"] = {UPDATE_REQUESTED_ANNOTATION: value}
        self.settle()

    @property
    def template(self) -> Any:
        """The pod template of the Deployment."""
        return self.deployment["spec"]["template"]

    def strategy(self) -> str:
        """Of the Deployment, as spec.rollout.strategy names it."""
        found = self.deployment["spec"]["strategy"]
        if found["type"] == "Recreate":
            return "Recreate"
        return "Surge" if found["rollingUpdate"]["maxSurge"] else "Replace"

    def kinds(self) -> set[str]:
        """Of the children."""
        return {kind for kind, _ in self.children}

    def of_kind(self, kind: str) -> list[Json]:
        """The children of one kind."""
        return [child for (each, _), child in self.children.items() if each == kind]

    @property
    def status(self) -> Any:
        return self.obj["status"]

    @property
    def rollout(self) -> Any:
        """status.rollout."""
        return self.status["rollout"]

    @property
    def plan(self) -> Any:
        """status.plan."""
        return self.status["plan"]

    def conditions(self) -> dict[str, Json]:
        return {c["type"]: c for c in self.status["conditions"]}

    def condition(self, type_: str) -> tuple[str, str]:
        """Status and reason of a condition; empty where there is none."""
        found = self.conditions().get(type_, {})
        return found.get("status", ""), found.get("reason", "")

    def message(self, type_: str) -> str:
        """Of a condition."""
        return str(self.conditions()[type_]["message"])


def a_pod(
    name: str,
    revision: str,
    *,
    ready: bool = False,
    scheduled: bool = True,
    unschedulable: str | None = None,
    state: Json | None = None,
    last: Json | None = None,
    restarts: int = 0,
    address: str = "",
    init: Json | None = None,
    deleting: bool = False,
    service: str = "x",
) -> Json:
    """A pod as the kubelet and the scheduler report it."""
    scheduling: Json = {"type": "PodScheduled", "status": "True"}
    if unschedulable is not None:
        scheduling |= {"status": "False", "reason": "Unschedulable", "message": unschedulable}
    conditions = [scheduling] if scheduled or unschedulable is not None else []
    conditions.append({"type": "Ready", "status": "True" if ready else "False"})
    server: Json = {
        "name": "server",
        "ready": ready,
        "started": ready,
        "restartCount": restarts,
        "state": state if state is not None else {"running": {"startedAt": "2026-01-02T03:00:00Z"}},
    }
    server |= {} if last is None else {"lastState": {"terminated": last}}
    is_placed = scheduled and unschedulable is None
    metadata: Json = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "labels": {"llmservice.dev/service": service, "llmservice.dev/revision": revision},
    }
    metadata |= {"deletionTimestamp": "2026-01-02T03:04:00Z"} if deleting else {}
    status = {
        "phase": "Running" if is_placed else "Pending",
        "podIP": address,
        "conditions": conditions,
        "containerStatuses": [server] if is_placed else [],
        "initContainerStatuses": [init] if init is not None else [],
    }
    spec = {"nodeName": "node-a"} if is_placed else {}
    return of_the_deployment({"metadata": metadata, "spec": spec, "status": status})


T4 = NodeGroup("Tesla-T4", 4, memory_mib=15360)
L4 = NodeGroup("NVIDIA-L4", 1, memory_mib=23034)
H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559)


def a_world(*groups: NodeGroup, **sections: Any) -> World:
    """A 7B model that another service knows, in a cluster with these nodes."""
    return World(an_llmservice(spec(**sections)), gpus=ClusterGPUs(groups))


def settled(*groups: NodeGroup, **sections: Any) -> World:
    """The same, with its children made where it fits."""
    world = a_world(*groups, **sections)
    world.settle()
    return world


def serving(*groups: NodeGroup, **sections: Any) -> World:
    """The same, rolled out."""
    world = settled(*groups, **sections)
    world.roll_out()
    world.settle()
    return world


def products(world: World, operator: str = "In") -> list[str]:
    """GPU products that the template requires; with NotIn those that it excludes."""
    required = _node_affinity(world).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    expressions = [each for term in required.get("nodeSelectorTerms", []) for each in term["matchExpressions"]]
    return _values(expressions, operator)


def preferred(world: World) -> list[str]:
    """GPU products that the template prefers."""
    terms = _node_affinity(world).get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return _values([each for term in terms for each in term["preference"]["matchExpressions"]], "In")


def _node_affinity(world: World) -> Json:
    return (world.template["spec"].get("affinity") or {}).get("nodeAffinity") or {}


def _values(expressions: list[Json], operator: str) -> list[str]:
    mine = [e for e in expressions if e["key"] == "nvidia.com/gpu.product" and e["operator"] == operator]
    return [value for each in mine for value in each["values"]]


def orphaned(world: World) -> World:
    """Deleted without its children, and made again."""
    for child in world.children.values():
        del child["metadata"]["ownerReferences"]
    return recreated(world)


def recreated(world: World) -> World:
    """Deleted and made again, while its children are still there."""
    world.obj["metadata"]["uid"] = "22222222-2222-4222-8222-222222222222"
    del world.obj["status"]
    return world
