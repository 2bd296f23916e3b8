"""The simulated API server: a store of objects, for clients in this process (`Connection`) and over HTTP (`answer`)."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from kubeloop.client import APPLY, MERGE_PATCH
from kubeloop.credentials import Credentials, IssuedToken, Token
from kubeloop.errors import AlreadyExists, ApiError, Conflict, FieldConflict, KubeError, NotFound
from kubeloop.resources import EVENT, LEASE, Resource
from kubeloop.transport import Transport
from llmservice_api.kinds import BY_KIND, LLMSERVICE
from llmservice_operator.readers.nodes import NODE
from llmservice_operator.service.watch.kinds import WATCHED

Json = dict[str, Any]

CREATED = "2026-01-01T00:00:00Z"
SECRET = Resource("", "v1", "secrets", "Secret")
NAMESPACE = Resource("", "v1", "namespaces", "Namespace")
RESOURCES = {**BY_KIND, **{each.kind: each for each in (NODE, SECRET, NAMESPACE)}}
PATHS = {resource.path(None): resource for resource in (*WATCHED, LEASE, EVENT, SECRET, NAMESPACE)}
"""Of the lists that are answered over HTTP."""
UNWATCHED = (
    NAMESPACE,
    Resource("", "v1", "events", "Event"),
    Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
)


def token_of(path: Path) -> Token:
    """The token of a file, read again where the server does not accept it."""

    async def read() -> IssuedToken:
        return IssuedToken(await asyncio.to_thread(path.read_text))

    return Token(IssuedToken(path.read_text()), read)


def llmservice(name: str, version: int, *, spec: Json | None = None, **metadata: Any) -> Json:
    """An LLMService as the API server stores it; `metadata` replaces the defaults."""
    return {
        "apiVersion": LLMSERVICE.api_version,
        "kind": LLMSERVICE.kind,
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": 1,
            # Objects that another kopf operator handles carry these; they are not ours to touch.
            "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
            "annotations": {"kopf.zalando.org/last-handled-configuration": "{}"},
            **metadata,
        },
        "spec": {"model": {"uri": "hf://a/b"}} if spec is None else spec,
    }


class ApiServer:
    """Objects by kind, who may do what, and a record of the requests."""

    def __init__(self, *objects: Json) -> None:
        self.version = 50
        self.objects: defaultdict[Resource, list[Json]] = defaultdict(list)
        self.calls: list[str] = []
        """Requests of this process, as `get Pod` or `apply Service by force`."""
        self.fails: dict[str, list[KubeError]] = {}
        """By call: the errors that the next ones are answered with."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Requests over HTTP: method, path and query."""
        self.streams: dict[Resource, asyncio.Queue[Json | None]] = defaultdict(asyncio.Queue)
        """What the watches of a kind bring; None: the server ends one of them."""
        self.watching: dict[Resource, asyncio.Event] = defaultdict(asyncio.Event)
        self._watches: defaultdict[Resource, int] = defaultdict(int)
        self.token = "t"
        self.page: int | None = None
        """Objects in a page of a list; None: all of them."""
        self.forbidden: set[tuple[str, str | None]] = set()
        """(plural, namespace); namespace None: everywhere."""
        self.absent: set[str] = set()
        """Kinds, by plural, whose CRD is not there."""
        self.undiscovered: set[Resource] = set()
        """Kinds that discovery does not know yet, though they can be listed and watched."""
        self.refused: dict[Resource, list[int]] = {}
        """Codes that the next requests of a kind are answered with."""
        self.answered = asyncio.Event()
        """Set with each of these."""
        self.refused_watches: dict[str, tuple[int, str]] = {}
        """By plural: the code and the reason that watches are answered with."""
        self.ends_at_once: dict[Resource, list[Json]] = {}
        """The only events that a watch of these kinds ever brings before the server ends it."""
        self.lines: dict[Resource, list[bytes]] = {}
        """What the next watches of a kind bring instead of events, each before the server ends it."""
        self.resets: set[Resource] = set()
        """Kinds whose next event is a connection that is reset."""
        self.scaled: Callable[[Json], None] = lambda obj: None
        """Called with an object whose replicas were changed by its /scale."""
        self.slow: set[str] = set()
        """Kinds, by plural, whose lists are not answered until `released` is set."""
        self.released = asyncio.Event()
        for obj in objects:
            self.put(obj)

    # The store

    def find(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """An object; without a namespace, the only one of its name."""
        return self._find(RESOURCES[kind], namespace, name)

    def put(self, obj: Json, **metadata: Any) -> Json:
        """Store an object in the place of one of its name; with `metadata`, or without a version, as a new version."""
        given = obj["metadata"]
        if metadata or "resourceVersion" not in given:
            self.version += 1
            changed = {"creationTimestamp": CREATED, **given, "resourceVersion": str(self.version), **metadata}
            obj = {**obj, "metadata": changed}
        self.remove(obj["kind"], given["name"], given.get("namespace"))
        self.objects[RESOURCES[obj["kind"]]].append(obj)
        return obj

    def remove(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """Forget an object, and return it."""
        found = self.find(kind, name, namespace)
        if found is not None:
            self.objects[RESOURCES[kind]].remove(found)
        return found

    def _find(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        return next((obj for obj in self._of(resource, namespace) if obj["metadata"]["name"] == name), None)

    def _of(self, resource: Resource, namespace: str | None) -> Iterable[Json]:
        return [o for o in self.objects[resource] if namespace in (None, o["metadata"].get("namespace"))]

    # Requests

    def call(self, verb: str, resource: Resource, path: str, params: Mapping[str, str], body: Any, type_: str) -> Json:
        """The answer to one request, or the error."""
        namespace, name, subresource = target(path)
        live = None if name is None else self._find(resource, namespace, name)
        is_apply = verb == "patch" and type_ == APPLY
        is_forced = params.get("force") == "true"
        if is_apply and "dryRun" in params:
            self._called(f"dry-run {resource.kind}")
            return {"metadata": {} if live is None else live["metadata"]}
        if subresource == "status":
            self._called("status")
            assert params["fieldManager"] == "llmservice-operator-status"
            if live is None:
                raise NotFound("none", code=404)
            return self.put({**live, "status": body["status"]}, **live["metadata"] | {"resourceVersion": self._next()})
        if is_apply:
            self._called(f"apply {resource.kind}{' by force' if is_forced else ''}")
            return self._apply(body, live, params["fieldManager"], is_forced=is_forced)
        about = f" {body['preconditions']['uid']}" if verb == "delete" else ""
        self._called(
            f"event {body['reason']}" if resource.kind == "Event" and body else f"{verb} {resource.kind}{about}"
        )
        if verb == "list":
            return self._list(resource, namespace, params)
        if verb == "create":
            if self._find(resource, namespace, body["metadata"].get("name", "")) is not None:
                raise AlreadyExists("there is one", code=409, reason="AlreadyExists")
            return body if resource.kind == "Event" else self._stored(body)
        if live is None:
            raise NotFound("none", code=404)
        if subresource == "scale":
            return self._scale(verb, live, body)
        if verb == "get":
            return live
        if verb == "update":
            if body["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
                raise Conflict("it changed", code=409)
            return self._stored(body)
        if verb == "delete":
            return self._delete(live, body["preconditions"]["uid"])
        if type_ == MERGE_PATCH:
            if body["metadata"].get("uid", live["metadata"]["uid"]) != live["metadata"]["uid"]:
                raise Conflict("uid mismatch", code=409)
            return self._stored(merged(live, body))
        return self._stored(patched(live, body))

    def _scale(self, verb: str, live: Json, patch: Json | None) -> Json:
        """The Scale of an LLMService, or what a merge patch makes of it. As in Kubernetes it has no `replicas` at 0."""
        if verb == "patch" and patch is not None:
            found = patch["metadata"]
            version = live["metadata"]["resourceVersion"]
            if found.get("uid") != live["metadata"]["uid"] or found.get("resourceVersion", version) != version:
                raise Conflict("the object has been modified", code=409)
            scaling = {**live["spec"].get("scaling", {}), "replicas": patch["spec"]["replicas"]}
            generation = live["metadata"].get("generation", 0) + 1
            live = self.put({**live, "spec": {**live["spec"], "scaling": scaling}}, generation=generation)
            self.scaled(live)
        replicas = live["spec"].get("scaling", {}).get("replicas", 1)
        spec = {"replicas": replicas} if replicas else {}
        names = ("name", "namespace", "uid", "resourceVersion")
        return {"kind": "Scale", "metadata": {name: live["metadata"][name] for name in names}, "spec": spec}

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.fails.get(call):
            raise self.fails[call].pop(0)

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def _stored(self, obj: Json) -> Json:
        return self.put(obj, resourceVersion=self._next())

    def _apply(self, manifest: Json, live: Json | None, manager: str, *, is_forced: bool) -> Json:
        assert manager == "llmservice-operator"
        uid = manifest["metadata"].get("uid")
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise Conflict("uid mismatch", code=409)
        assert is_forced == (uid is not None), "force needs the uid, and the uid allows force"
        # What carries no label of ours, somebody else made, and has fields in.
        if live is not None and not is_forced and not live["metadata"].get("labels"):
            raise FieldConflict('conflict with "helm"', code=409)
        return self.put(manifest, uid=live["metadata"]["uid"] if live else f"u-{manifest['kind']}")

    def _delete(self, live: Json, uid: str) -> Json:
        if live["metadata"]["uid"] != uid:
            raise Conflict("uid mismatch", code=409)
        if live["metadata"].get("finalizers"):
            return self.put(live, deletionTimestamp=CREATED)
        self.remove(live["kind"], live["metadata"]["name"], live["metadata"].get("namespace"))
        return {"kind": "Status"}

    def _list(self, resource: Resource, namespace: str | None, params: Mapping[str, str]) -> Json:
        found = list(self._of(resource, namespace))
        _, _, address = params.get("fieldSelector", "").partition("status.podIP=")
        if address:
            found = [obj for obj in found if obj["status"].get("podIP") == address]
        start = int(params.get("continue", 0))
        end = len(found) if self.page is None else start + self.page
        more = {"continue": str(end)} if end < len(found) else {}
        return {"metadata": {"resourceVersion": str(self.version), **more}, "items": found[start:end]}

    # Over HTTP

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """For `tests.support.http_servers.application`."""
        path, query = "/" + request.match_info["path"], dict(request.query)
        self.requests.append((request.method, path, query))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        namespace, name, _ = target(path)
        resource = PATHS.get(collection(path))
        if resource is None:
            hidden = {f"/apis/{each.api_version}" for each in self.undiscovered}
            return status(404, "NotFound") if path in hidden else web.json_response(discovery(path))
        if self.refused.get(resource):
            self.answered.set()
            return status(self.refused[resource].pop(0))
        if resource.plural in self.absent:
            return status(404, "NotFound", "the server could not find the requested resource")
        if {(resource.plural, namespace), (resource.plural, None)} & self.forbidden:
            return status(403, "Forbidden", f'User "op" cannot list resource "{resource.plural}" in API group ""')
        if "watch" in query:
            refused = self.refused_watches.get(resource.plural)
            return await self._watch(request, resource) if refused is None else status(*refused)
        if request.method == "GET" and resource.plural in self.slow:
            await self.released.wait()
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method)
        body = await request.json() if request.can_read_body else None
        try:
            read = "list" if name is None else "get"
            return web.json_response(self.call(verb or read, resource, path, query, body, request.content_type))
        except ApiError as error:
            return status(error.code, error.reason, error.message)

    def written(self, path: str) -> bool:
        """Whether anything was sent there but a read."""
        return any(asked == path and method != "GET" for method, asked, _ in self.requests)

    def end_watches(self) -> None:
        """As the server does every ten minutes."""
        for resource, count in self._watches.items():
            for _ in range(count):
                self.streams[resource].put_nowait(None)

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watching[resource].set()
        if resource in self.ends_at_once:
            for only in self.ends_at_once[resource]:
                await response.write(json.dumps(only).encode() + b"\n")
        elif self.lines.get(resource):
            await response.write(self.lines[resource].pop(0))
        else:
            self._watches[resource] += 1
            try:
                await self._stream(request, resource, response)
            finally:
                self._watches[resource] -= 1
        return response

    async def _stream(self, request: web.Request, resource: Resource, response: web.StreamResponse) -> None:
        while (event := await self.streams[resource].get()) is not None:
            if resource in self.resets and request.transport is not None:
                self.resets.discard(resource)
                request.transport.abort()
                return
            await response.write(json.dumps(event).encode() + b"\n")
            if event["type"] == "ERROR":
                return


class Connection(Transport):
    """A client's connection to the simulated API server, without a socket."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(Credentials(server="http://x", namespace="ns", token=Token.fixed(None)))
        self.server = server

    async def request(self, verb: str, resource: Resource, path: str, **options: Any) -> Json:
        timeout = options.get("timeout", 0.0)
        if callable(timeout):
            timeout()
        asked = options.get("params") or {}, options.get("body"), options.get("content_type", "application/json")
        return self.server.call(verb, resource, path, *asked)


def target(path: str) -> tuple[str | None, str | None, str | None]:
    """Namespace, name and subresource of a path."""
    _, _, rest = path.partition("/namespaces/")
    if rest and "/" not in rest:
        return None, rest, None
    namespace, _, name, subresource = (*rest.split("/"), None, None, None)[:4]
    return namespace or None, name, subresource


def collection(path: str) -> str:
    """The path of its kind's list over all namespaces."""
    before, _, rest = path.partition("/namespaces/")
    return f"{before}/{rest.split('/')[1] if '/' in rest else 'namespaces'}" if rest else path


def merged(live: Json, patch: Json) -> Json:
    """The object after a JSON merge patch."""
    found = {key: value for key, value in live.items() if patch.get(key, value) is not None}
    for key, value in patch.items():
        if value is not None:
            found[key] = merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


def patched(live: Json, operations: list[Json]) -> Json:
    """The object after a JSON patch."""
    found = copy.deepcopy(live)
    for operation in operations:
        *way, last = operation["path"].split("/")[1:]
        place: Any = found
        for step in way:
            place = place[int(step) if isinstance(place, list) else step]
        key = int(last) if isinstance(place, list) else last
        if operation["op"] == "test":
            if place[key] != operation["value"]:
                raise Conflict("the test failed", code=409)
        elif operation["op"] == "remove":
            del place[key]
        else:
            place[key] = operation["value"]
    return found


def status(code: int, reason: str = "", message: str = "no") -> web.Response:
    """A failure, as the API server answers it."""
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


def discovery(path: str) -> Json:
    """Which kinds there are."""
    everything = [*WATCHED, *UNWATCHED]
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        groups = {r.group: {"version": r.version} for r in everything if r.group}
        return {"groups": [{"name": g, "preferredVersion": v, "versions": [v]} for g, v in groups.items()]}
    verbs = {"namespaced": True, "verbs": ["list", "watch", "patch"]}
    return {
        "resources": [
            {"name": r.plural, "singularName": r.kind.lower(), "kind": r.kind, **verbs}
            for r in everything
            if path == (f"/apis/{r.api_version}" if r.group else f"/api/{r.version}")
        ]
    }
