"""The API server as a dictionary, and a service around which decisions are carried out."""

import datetime
from collections.abc import AsyncIterator, Mapping
from typing import Any

from llmservice_operator.api.service import Key
from llmservice_operator.build.settings import Settings
from llmservice_operator.control.containment.internal_errors import InternalErrors
from llmservice_operator.control.context import Context
from llmservice_operator.control.metrics.registry import Metrics
from llmservice_operator.control.queue.work_queue import WorkQueue
from llmservice_operator.control.reconcile import AGAIN, Next, reconcile
from llmservice_operator.control.state_poller import StatePoller
from llmservice_operator.control.watch.cache import Cache
from llmservice_operator.control.watch.kinds import INDICES, PARENT, PROJECTIONS
from llmservice_operator.decide.decide import complete
from llmservice_operator.decide.decision import Apply, Decision, Event, Prune
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.kube.client import KubeClient
from llmservice_operator.kube.errors import Conflict, FieldConflict, KubeError
from llmservice_operator.kube.nodes import Nodes
from llmservice_operator.kube.pod_events import PodEventReader
from llmservice_operator.kube.resources import Resource
from llmservice_operator.planner.model import reading
from llmservice_runtime.contract import Phase, State

KEY = Key("ns", "chat")
LABELS = {"llmservice.dev/service": "chat"}
OWNER = [{"apiVersion": "llmservice.dev/v1alpha1", "kind": PARENT, "name": "chat", "uid": "u-1", "controller": True}]


def parent(version: int = 1, *, uid: str = "u-1", generation: int = 1, uri: str = "hf://a/b", **more: Any) -> Any:
    metadata = {
        "namespace": "ns",
        "name": "chat",
        "uid": uid,
        "resourceVersion": str(version),
        "generation": generation,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **more,
    }
    return {"metadata": metadata, "spec": {"model": {"uri": uri}}, "status": {}}


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    labels, owner = {**LABELS, "llmservice.dev/service": name}, {**OWNER[0], "name": name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "ns", "name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"port": 80, **spec},
    }


class Api(KubeClient):
    """The API server as a dictionary, and a list of what was asked of it."""

    def __init__(self, *objects: Any) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fails: dict[str, list[KubeError]] = {}
        for obj in objects:
            self.objects[obj.get("kind", PARENT), obj["metadata"]["name"]] = obj

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.fails.get(what):
            raise self.fails[what].pop(0)

    async def list_pages(
        self, resource: Resource, namespace: str | None, *, label_selector: str = "", **_: Any
    ) -> AsyncIterator[dict[str, Any]]:
        self._called(f"list {resource.kind}")
        yield {"items": [obj for (kind, _), obj in self.objects.items() if kind == resource.kind]}

    async def list_some(
        self, resource: Resource, namespace: str, *, field_selector: str, limit: int
    ) -> list[dict[str, Any]]:
        self._called(f"list {resource.kind}")
        return []

    def _store(self, obj: Mapping[str, Any], uid: str) -> dict[str, Any]:
        self.version += 1
        created = {"creationTimestamp": "2026-01-01T00:00:00Z"}
        metadata = created | {**obj["metadata"], "uid": uid, "resourceVersion": str(self.version)}
        stored = {**obj, "metadata": metadata}
        self.objects[obj["kind"], metadata["name"]] = stored
        return stored

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        self._called(f"get {resource.kind}")
        return self.objects.get((resource.kind, name))

    async def apply(self, manifest: Mapping[str, Any], *, manager: str, force: bool = False) -> dict[str, Any]:
        kind, metadata = manifest["kind"], manifest["metadata"]
        self._called(f"apply {kind}{' by force' if force else ''}")
        assert manager == "llmservice-operator"
        live = self.objects.get((kind, metadata["name"]))
        if "uid" in metadata and (live is None or live["metadata"]["uid"] != metadata["uid"]):
            raise Conflict("uid mismatch", code=409)
        assert force == ("uid" in metadata), "force needs the uid, and the uid allows force"
        # What carries no label of ours, somebody else made, and has fields in.
        if live is not None and not force and not live["metadata"].get("labels"):
            raise FieldConflict('conflict with "helm"', code=409)
        return self._store(manifest, live["metadata"]["uid"] if live else f"u-{kind}")

    async def metadata_of(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        self._called(f"look {resource.kind}")
        live = self.objects.get((resource.kind, name))
        return None if live is None else live["metadata"]

    async def apply_status(self, manifest: Mapping[str, Any], *, manager: str) -> dict[str, Any]:
        self._called("status")
        assert manager == "llmservice-operator-status"
        name = manifest["metadata"]["name"]
        live = self.objects[PARENT, name]
        self.version += 1
        live = {**live, "status": manifest["status"]}
        live["metadata"] = {**live["metadata"], "resourceVersion": str(self.version)}
        self.objects[PARENT, name] = live
        return live

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> dict[str, Any] | None:
        self._called(f"delete {resource.kind} {uid}")
        live = self.objects.pop((resource.kind, name), None)
        if live is not None and live["metadata"].get("finalizers"):
            return {**live, "metadata": {**live["metadata"], "deletionTimestamp": "now"}}
        return None

    async def json_patch(
        self, resource: Resource, namespace: str, name: str, operations: list[dict[str, Any]], *, manager: str
    ) -> dict[str, Any]:
        self._called(f"patch {resource.kind}")
        for operation in operations:
            if operation["op"] == "replace" and operation["path"].startswith("/metadata/ownerReferences/0/uid"):
                live = self.objects[resource.kind, name]
                reference = {**live["metadata"]["ownerReferences"][0], "uid": operation["value"]}
                live["metadata"] = {**live["metadata"], "ownerReferences": [reference]}
        return self._store(self.objects[resource.kind, name], self.objects[resource.kind, name]["metadata"]["uid"])

    async def create_event(self, event: Mapping[str, Any]) -> None:
        self._called(f"event {event['reason']}")


class Deciding:
    """Wants one Service, and a status that tells whether it is there."""

    def __init__(self, wanted: dict[str, Any] | None = None) -> None:
        self.wanted = wanted or service()
        self.prune = False
        self.never_content = False
        self.expel = False
        self.more: dict[str, Any] = {}
        """What the status says besides."""

    def __call__(self, inputs: Inputs) -> Decision:
        svc, observed = inputs.service, inputs.observed
        if svc is None:
            problems = {"problems": [problem.field for problem in inputs.problems]}
            return Decision(status=None if problems == inputs.parent["status"] else problems)
        live = observed.service
        apply: tuple[Apply, ...] = ()
        wanted = self.wanted if svc.name == "chat" else service(svc.name)
        if self.never_content or live is None or live.live()["spec"] != wanted["spec"]:
            known = live.uid if live is not None and live.owner_uid == svc.uid else None
            apply = (Apply(wanted, "it is not as asked for", known_uid=known, expel=self.expel, input_hash="h"),)
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
    def __init__(self, *objects: Any, cached: bool = True) -> None:
        self.api = Api(*objects)
        self.now = 1000.0
        self.deciding = Deciding()
        self.changed: list[Key] = []
        metrics = Metrics()
        errors = InternalErrors(
            count=lambda part: metrics.internal_errors.labels(part).inc(),
            changed=lambda key: self.ctx.queue.add(key),
            clock=lambda: self.now,
        )
        self.ctx = Context(
            kube=self.api,
            cache=Cache(PROJECTIONS, INDICES),
            queue=WorkQueue(clock=lambda: self.now, rng=lambda: 1.0),
            settings=Settings(),
            metrics=metrics,
            state_poller=StatePoller(
                self.read, self.changed.append, metrics, errors=errors, clock=lambda: self.now, rng=lambda: 0.5
            ),
            errors=errors,
            nodes=Nodes(self.api, clock=lambda: self.now),
            configs=Configs(),
            pod_events=PodEventReader(self.api, clock=lambda: self.now),
            decide=lambda inputs: complete(self.deciding(inputs), inputs),
            now=lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            identity="me",
            clock=lambda: self.now,
        )
        for obj in objects if cached else ():
            self.ctx.cache.update(obj.get("kind", PARENT), obj)

    async def read(self, address: str) -> State:
        return State(Phase.LOADING, progress=address)

    async def look(self) -> Next:
        """One pass."""
        self.api.calls.clear()
        return await reconcile(KEY, self.ctx)

    async def settle(self) -> Next:
        """All passes that follow each other at once."""
        self.api.calls.clear()
        then = AGAIN
        while then == AGAIN:
            then = await reconcile(KEY, self.ctx)
        return then
