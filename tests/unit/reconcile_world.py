"""One operator's context on the simulated API server, and a service with decisions that a test controls."""

import datetime
from typing import Any

from kubeloop.client import AlwaysOpen, KubeClient, PodEventReader
from kubeloop.informer import Cache
from kubeloop.queue import WorkQueue
from kubeloop.resources import Key
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.decision import Apply, Decision, Event, Inputs, Prune
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.readers.nodes import Nodes, QuotaReader
from llmservice_operator.readers.pod_port import Requests, Unreadable
from llmservice_operator.service.containment import InternalErrors
from llmservice_operator.service.context import Context
from llmservice_operator.service.decide import complete
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.reconcile import AGAIN, Next, reconcile
from llmservice_operator.service.state_poller import StatePoller
from llmservice_operator.service.watch import INDICES, PARENT, PROJECTIONS
from llmservice_planner.model import reading
from llmservice_runtime.contract import Phase, State

from tests.unit.api_server import CREATED, ApiServer, Connection

KEY = Key("ns", "chat")
LABELS = {"llmservice.dev/service": "chat"}
API_VERSION = LLMSERVICE.api_version
OWNER = [{"apiVersion": API_VERSION, "kind": PARENT, "name": "chat", "uid": "u-1", "controller": True}]


def parent(version: int = 1, *, uri: str = "hf://a/b", **more: Any) -> Any:
    """The LLMService; `more` goes into its metadata."""
    metadata = {"namespace": "ns", "name": "chat", "uid": "u-1", "generation": 1, "creationTimestamp": CREATED}
    return {
        "apiVersion": API_VERSION,
        "kind": PARENT,
        "metadata": {**metadata, "resourceVersion": str(version), **more},
        "spec": {"model": {"uri": uri}},
        "status": {},
    }


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """Its only child."""
    labels, owner = {**LABELS, "llmservice.dev/service": name}, {**OWNER[0], "name": name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "ns", "name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"port": 80, **spec},
    }


class Deciding:
    """Wants one Service, and a status that tells whether it is there."""

    def __init__(self, wanted: dict[str, Any] | None = None) -> None:
        self.wanted = wanted or service()
        self.prune = False
        self.never_content = False
        self.remove_foreign_fields = False
        self.more: dict[str, Any] = {}
        """What the status says besides."""

    def __call__(self, inputs: Inputs) -> Decision:
        svc, observed = inputs.stored, inputs.observed
        if svc is None:
            problems = {"problems": [problem.field for problem in inputs.problems]}
            return Decision(status=None if problems == inputs.parent["status"] else problems)
        live = observed.service
        apply: tuple[Apply, ...] = ()
        wanted = self.wanted if svc.name == "chat" else service(svc.name)
        if self.never_content or live is None or live.live()["spec"] != wanted["spec"]:
            known = live.uid if live is not None and live.owner_uid == svc.uid else None
            apply = (
                Apply(
                    wanted,
                    "it is not as asked for",
                    known_uid=known,
                    remove_foreign_fields=self.remove_foreign_fields,
                    input_hash="h",
                ),
            )
        prune = (Prune("Service", "chat", live.uid, "not wanted"),) if self.prune and live is not None else ()
        refused = [refusal.message for refusal in observed.refused.values()]
        status = {"there": live is not None, "refused": refused, "observedGeneration": svc.generation} | self.more
        if status == dict(svc.status):
            return Decision(apply=() if self.prune else apply, prune=prune)
        return Decision(
            apply=() if self.prune else apply, prune=prune, status=status, events=(Event("Normal", "Told", "x"),)
        )


class Configs:
    """Reads configurations where it is asked to, at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def read(self, key: Key, document: str) -> bytes | None:
        self.asked.append(document)
        return reading.read(document)


class World:
    """The operator's context, with the objects in the API server and, if `cached`, seen by the watches."""

    def __init__(self, *objects: Any, cached: bool = True) -> None:
        self.api = ApiServer(*objects)
        self.kube = KubeClient(Connection(self.api), AlwaysOpen())
        self.now = 1000.0
        self.deciding = Deciding()
        self.changed: list[Key] = []
        self.in_flight: dict[str, int] = {}
        """Requests of the pod at an address; others do not answer."""
        metrics, clock = Metrics(), lambda: self.now
        errors = InternalErrors(
            count=lambda part: metrics.internal_errors.labels(part).inc(),
            changed=lambda key: self.ctx.queue.add(key),
            clock=clock,
        )
        self.ctx = Context(
            kube=self.kube,
            cache=Cache(PROJECTIONS, INDICES),
            queue=WorkQueue(clock=clock, rng=lambda: 1.0),
            settings=Settings(),
            metrics=metrics,
            state_poller=StatePoller(
                self.read, self.changed.append, metrics, errors=errors, clock=clock, rng=lambda: 0.5
            ),
            errors=errors,
            nodes=Nodes(self.kube, clock=clock),
            configs=Configs(),
            pod_events=PodEventReader(self.kube, clock=clock),
            quotas=QuotaReader(self.kube, clock=clock),
            read_requests=self.requests,
            decide=lambda inputs: complete(self.deciding(inputs), inputs),
            now=lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            identity="me",
            clock=clock,
        )
        for obj in objects if cached else ():
            self.see(obj)

    async def requests(self, address: str) -> Requests:
        """In flight in a pod."""
        if address not in self.in_flight:
            raise Unreadable("it does not answer")
        return Requests(self.in_flight[address], None)

    async def read(self, address: str) -> State:
        """What a pod reports."""
        return State(Phase.LOADING, progress=address)

    async def reconcile(self) -> Next:
        """One pass; `calls` are its own."""
        self.api.forget_requests()
        return await reconcile(KEY, self.ctx)

    async def settle(self) -> Next:
        """All passes that follow each other at once."""
        self.api.forget_requests()
        then = AGAIN
        while then == AGAIN:
            then = await reconcile(KEY, self.ctx)
        return then

    def calls(self, *words: str) -> list[str]:
        """Requests since the last pass began; with `words`, those that contain one of them."""
        return [call for call in self.api.calls if not words or any(word in call for word in words)]

    def see(self, obj: Any) -> None:
        """The watch brings it."""
        self.ctx.cache.update(obj["kind"], obj)

    def edit(self, spec: Any = None, **metadata: Any) -> Any:
        """A user's edit, which the watch brings at once: the next generation, with these sections replaced."""
        live = self.stored()
        metadata = {"generation": live["metadata"]["generation"] + 1} | metadata
        edited = self.api.put({**live, "spec": live["spec"] | (spec or {})}, **metadata)
        self.see(edited)
        return edited

    def drift(self, managed_fields: Any = None, **spec: Any) -> None:
        """Somebody changes the Service, which the watch brings at once."""
        more = {} if managed_fields is None else {"managedFields": managed_fields}
        self.see(self.api.put(service(**spec), uid="u-Service", **more))

    def stored(self, kind: str = PARENT, name: str = "chat") -> Any:
        """An object as the API server has it; None: there is none."""
        return self.api.find(kind, name)

    @property
    def status(self) -> Any:
        """Of the LLMService."""
        return self.stored()["status"]

    def condition(self, type_: str) -> dict[str, Any]:
        """One condition of the status."""
        return next(dict(item) for item in self.status["conditions"] if item["type"] == type_)
