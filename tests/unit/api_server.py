"""The simulated API server: objects by path, for clients in this process (`Connection`) and over HTTP (`answer`)."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from kubeloop.client import APPLY, MERGE_PATCH
from kubeloop.credentials import Credentials, IssuedToken, Token
from kubeloop.errors import AlreadyExists, ApiError, Conflict, FieldConflict, NotFound
from kubeloop.resources import Resource
from kubeloop.transport import METHODS, Transport
from llmservice_api.constants import BY_KIND, LLMSERVICE
from llmservice_operator.readers.nodes import NODE, RESOURCE_SLICE
from llmservice_operator.service.watch import WATCHED

from tests.support.http_servers import application

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

CREATED = "2026-01-01T00:00:00Z"
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
RESET = b"reset"
"""In place of an event of a watch: the connection is reset."""

NAMESPACE = Resource("", "v1", "namespaces", "Namespace")
CRD = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
BINDING = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding")
_OTHERS = (NODE, RESOURCE_SLICE, NAMESPACE, CRD, BINDING, Resource("", "v1", "secrets", "Secret"))
RESOURCES = {**BY_KIND, **{each.kind: each for each in _OTHERS}}
"""By kind. There are no others."""
_BY_COLLECTION = {each.path(None): each for each in RESOURCES.values()}


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


def reply(code: int, body: Any = b"{}", **headers: str) -> Handler:
    """Answers with this, which is JSON where it is no bytes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, body=text, content_type="application/json", headers=named)

    return answer


class ApiServer:
    """Objects by path, what is answered instead of them, and a record of the requests."""

    def __init__(self, *objects: Json) -> None:
        self.version = 50
        self.objects: dict[str, Json] = {}
        self.calls: list[str] = []
        """Requests as `get Pod`, `apply Service by force`, `event Scaled` or `delete Pod uid`."""
        self.requests: list[tuple[str, str, Mapping[str, str], Any]] = []
        """Method, path, query and body."""
        self.headers: list[Mapping[str, str]] = []
        """Of requests over HTTP."""
        self.fails: dict[str, list[Exception]] = {}
        """By call: the errors that the next ones are answered with."""
        self.then: dict[str, Callable[[Json], Any]] = {}
        """By call: what happens right after one, with its answer."""
        self.reviews: dict[str, Callable[[Json], Json]] = {}
        """By kind: the status of a review of a spec."""
        self.page: int | None = None
        """Objects in a page of a list; None: all of them."""
        # Over HTTP:
        self.token: str | None = None
        """The only one that is accepted; None: any."""
        self.script: list[Any] = []
        """What the next requests are answered with, whatever they ask for; the last one stays."""
        self.answers: dict[str, Any] = {}
        """By "METHOD path" or path, what comes before the objects: JSON, a text, the code of a refusal with or without
        its message, or a handler, whose None means the objects. The method of a watch is WATCH."""
        self.refused: dict[str, Any] = {}
        """By plural, "namespace/plural" or "watch plural": such an answer, or a list of those of the next requests."""
        self.streams: dict[Resource, asyncio.Queue[Json | bytes | None]] = defaultdict(asyncio.Queue)
        """What the watches of a kind bring: events, or lines as they are; None: the server ends one of them."""
        self.watching: dict[Resource, asyncio.Event] = defaultdict(asyncio.Event)
        self._watches: defaultdict[Resource, int] = defaultdict(int)
        for obj in objects:
            self.put(obj)

    # The store

    def put(self, obj: Json, **metadata: Any) -> Json:
        """Store an object in the place of one of its name; with `metadata`, or without a version, as a new version."""
        path = self._path(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace"))
        if metadata or "resourceVersion" not in obj["metadata"]:
            return self._store(path, obj, **metadata)
        self.objects.pop(path, None)
        self.objects[path] = obj
        return obj

    def find(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """An object; without a namespace, the only one of its name."""
        return self.objects.get(self._path(kind, name, namespace))

    def remove(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """Forget an object, and return it."""
        return self.objects.pop(self._path(kind, name, namespace), None)

    def all_of(self, resource: Resource) -> list[Json]:
        """The objects of a kind."""
        return self._listed(resource.path(None))

    def replace(self, resource: Resource, *objects: Json) -> None:
        """Have these objects of a kind, and no others."""
        for path in [path for path in self.objects if Target.of(path).resource is resource]:
            del self.objects[path]
        for obj in objects:
            self.put(obj)

    def _path(self, kind: str, name: str, namespace: str | None) -> str:
        path = RESOURCES[kind].path(namespace, name)
        if namespace is None:
            return next((each for each in self.objects if re.sub("/namespaces/[^/]+/", "/", each) == path), path)
        return path

    def _listed(self, path: str) -> list[Json]:
        return [obj for place, obj in self.objects.items() if path in Target.of(place).collections]

    # Requests

    def sent(self, method: str) -> list[tuple[str, Any]]:
        """The last parts of the paths of all requests with this method, and their bodies."""
        return [(path.rpartition("/")[2], body) for done, path, _, body in self.requests if done == method]

    @property
    def tokens(self) -> set[str]:
        """As the headers of all requests have them."""
        return {headers.get("Authorization", "") for headers in self.headers}

    def forget_requests(self) -> None:
        """Those that were recorded."""
        for record in (self.calls, self.requests, self.headers):
            record.clear()

    def call(self, verb: str, resource: Resource, path: str, params: Mapping[str, str], body: Any, type_: str) -> Json:
        """The answer to one request, or the error."""
        at = Target.of(path)
        call = _named(verb, resource, at, params, body, type_)
        self.calls.append(call)
        if self.fails.get(call):
            raise self.fails[call].pop(0)
        answer = self._answered(verb, resource, at, params, body, type_)
        if call in self.then:
            self.then[call](answer)
        return answer

    def _answered(
        self, verb: str, resource: Resource, at: Target, params: Mapping[str, str], body: Any, type_: str
    ) -> Json:
        live = self.objects.get(at.path)
        is_apply = verb == "patch" and type_ == APPLY
        if verb == "list":
            return self._list(resource, at, params)
        if verb == "create":
            return self._create(resource, at, body)
        if is_apply and "dryRun" in params:
            return {"metadata": {} if live is None else live["metadata"]}
        if is_apply and at.subresource is None:
            return self._apply(at, body, live, params["fieldManager"], is_forced=params.get("force") == "true")
        if live is None:
            raise NotFound("none", code=404, reason="NotFound")
        if at.subresource == "status":
            assert params["fieldManager"] == "llmservice-operator-status"
            return self._store(at.path, {**live, "status": body["status"]})
        if at.subresource == "scale":
            return self._scale(at, verb, live, body)
        if verb == "get":
            return live
        if verb == "delete":
            return self._delete(at, live, (body or {}).get("preconditions") or {})
        if isinstance(body, dict):
            _check(live, body.get("metadata") or {})
        changed = body if verb == "update" else merged(live, body) if type_ == MERGE_PATCH else patched(live, body)
        return self._store(at.path, changed)

    def _store(self, path: str, obj: Json, **metadata: Any) -> Json:
        """As a new version."""
        self.version += 1
        changed = {"creationTimestamp": CREATED, **obj["metadata"], "resourceVersion": str(self.version), **metadata}
        self.objects.pop(path, None)
        self.objects[path] = {**obj, "metadata": changed}
        return self.objects[path]

    def _list(self, resource: Resource, at: Target, params: Mapping[str, str]) -> Json:
        found = [obj for obj in self._listed(at.path) if _is_selected(obj, params)]
        start = int(params.get("continue", 0))
        end = len(found) if self.page is None else start + self.page
        more = {"continue": str(end)} if end < len(found) else {}
        if resource.group.endswith("k8s.io") or "." not in resource.group:
            # Of its own kinds the API server says what they are in the list alone.
            found = [{name: part for name, part in obj.items() if name not in ("apiVersion", "kind")} for obj in found]
        return {"metadata": {"resourceVersion": str(self.version), **more}, "items": found[start:end]}

    def _create(self, resource: Resource, at: Target, body: Json) -> Json:
        if resource.kind in self.reviews:
            return {"status": self.reviews[resource.kind](body["spec"])}
        path = f"{at.path}/{body['metadata'].get('name', '')}"
        if path in self.objects:
            raise AlreadyExists("there is one", code=409, reason="AlreadyExists")
        made = {**body, "metadata": {"uid": f"u-{resource.kind}", **body["metadata"]}}
        return body if resource.kind == "Event" else self._store(path, made)

    def _apply(self, at: Target, manifest: Json, live: Json | None, manager: str, *, is_forced: bool) -> Json:
        assert manager == "llmservice-operator"
        uid = manifest["metadata"].get("uid")
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise Conflict("uid mismatch", code=409)
        assert is_forced == (uid is not None), "force needs the uid, and the uid allows force"
        # What carries no label of ours, somebody else made, and has fields in.
        if live is not None and not is_forced and not live["metadata"].get("labels"):
            raise FieldConflict('conflict with "helm"', code=409)
        return self._store(at.path, manifest, uid=live["metadata"]["uid"] if live else f"u-{manifest['kind']}")

    def _scale(self, at: Target, verb: str, live: Json, patch: Json | None) -> Json:
        """The Scale of an LLMService, or what a merge patch makes of it. As in Kubernetes it has no `replicas` at 0."""
        if verb == "patch" and patch is not None:
            _check(live, patch["metadata"])
            scaling = {**live["spec"].get("scaling", {}), "replicas": patch["spec"]["replicas"]}
            generation = live["metadata"].get("generation", 0) + 1
            live = self._store(at.path, {**live, "spec": {**live["spec"], "scaling": scaling}}, generation=generation)
        replicas = live["spec"].get("scaling", {}).get("replicas", 1)
        spec = {"replicas": replicas} if replicas else {}
        names = ("name", "namespace", "uid", "resourceVersion")
        return {"kind": "Scale", "metadata": {name: live["metadata"][name] for name in names}, "spec": spec}

    def _delete(self, at: Target, live: Json, preconditions: Json) -> Json:
        _check(live, preconditions)
        if live["metadata"].get("finalizers"):
            return self._store(at.path, live, deletionTimestamp=CREATED)
        del self.objects[at.path]
        return {"kind": "Status"}

    # Over HTTP

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """For `tests.support.http_servers.application`."""
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path, dict(request.query), body))
        self.headers.append(request.headers.copy())
        at = Target.of(request.rel_url.raw_path)
        verb = "list" if at.is_list else "get"
        verb = "watch" if "watch" in request.query else {**_VERBS, "GET": verb}[request.method]
        given = self._given(request, at, verb)
        response = await given(request) if callable(given) else given
        if response is None:
            return await self._of_objects(request, at, verb, body)
        return response if isinstance(response, web.StreamResponse) else _response(response, verb, request.path)

    def _given(self, request: web.Request, at: Target, verb: str) -> Any:
        """What is answered instead of what the objects say; None: nothing."""
        if self.script:
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        method = "WATCH" if verb == "watch" else request.method
        for key in (f"{method} {request.path}", request.path):
            if key in self.answers:
                return self.answers[key]
        for key in at.kinds(verb):
            found = self.refused.get(key)
            if found := found.pop(0) if isinstance(found, list) and found else found:
                return found
        return None

    async def _of_objects(self, request: web.Request, at: Target, verb: str, body: Any) -> web.StreamResponse:
        if at.resource is None or at.subresource not in (None, "status", "scale"):
            if request.path in self.objects:
                return web.json_response(self.objects[request.path])
            is_discovery = _DISCOVERY.fullmatch(request.path)
            return web.json_response(discovery(request.path)) if is_discovery else _response(404, verb, request.path)
        if verb == "watch":
            return await self._watch(request, at.resource)
        try:
            return web.json_response(
                self.call(verb, at.resource, request.rel_url.raw_path, dict(request.query), body, request.content_type)
            )
        except ApiError as error:
            return status(error.code, error.reason, error.message)

    def hold(self, path: str) -> asyncio.Event:
        """Requests with this path are answered once it is set."""
        released = asyncio.Event()

        async def wait(_: web.Request) -> None:
            await released.wait()

        self.answers[path] = wait
        return released

    def bring(self, type_: str, obj: Json, resource: Resource = LLMSERVICE) -> None:
        """An event of a watch; `resource` of an object that does not say its kind."""
        self.streams[RESOURCES.get(obj.get("kind", ""), resource)].put_nowait({"type": type_, "object": obj})

    def end_watches(self) -> None:
        """As the server does every ten minutes."""
        for resource, count in self._watches.items():
            for _ in range(count):
                self.streams[resource].put_nowait(None)

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watching[resource].set()
        self._watches[resource] += 1
        try:
            while (event := await self.streams[resource].get()) is not None:
                if event == RESET and request.transport is not None:
                    request.transport.abort()
                    break
                await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
                if isinstance(event, dict) and event["type"] == "ERROR":
                    break
        finally:
            self._watches[resource] -= 1
        return response


class Connection(Transport):
    """A client's connection to the simulated API server, without a socket."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(Credentials(server="http://x", namespace="ns", token=Token.fixed(None)))
        self.server = server
        self.delay: Callable[[], Awaitable[Any]] | None = None
        """Awaited before each answer."""
        self.at_once = self.most_at_once = 0

    async def request(self, verb: str, resource: Resource, path: str, **options: Any) -> Json:
        timeout = options.get("timeout", 0.0)
        if callable(timeout):
            timeout()
        params, body = options.get("params") or {}, options.get("body")
        self.server.requests.append((METHODS[verb], path, dict(params), body))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.delay is not None:
                await self.delay()
            return self.server.call(verb, resource, path, params, body, options.get("content_type", ""))
        finally:
            self.at_once -= 1


@asynccontextmanager
async def over_http(
    server: ApiServer, token: Token | None = None, *, made: type[Transport] = Transport, **options: Any
) -> AsyncIterator[Transport]:
    """A real transport to it, `made` by this class."""
    async with application(server.answer) as url:
        credentials = Credentials(server=url, namespace="ns", token=token or Token.fixed("t"))
        async with made(credentials, **options) as transport:
            yield transport


_PATH = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)(/namespaces/[^/]+(?=/))?/([^/]+)(/[^/]+)?(?:/(.+))?")
_DISCOVERY = re.compile(r"/apis?|/api/v1|/apis/[^/]+/[^/]+")
_VERBS = {method: verb for verb, method in METHODS.items()}


class Target(NamedTuple):
    """What a path is about."""

    path: str
    """Of the object or list, without a subresource."""
    resource: Resource | None = None
    """None: of no kind that there is."""
    collections: tuple[str, str] = "", ""
    """Where the kind is listed: in the namespace, and in all of them."""
    is_list: bool = False
    subresource: str | None = None

    @classmethod
    def of(cls, path: str) -> Target:
        found = _PATH.fullmatch(path)
        if found is None:
            return cls(path)
        api, namespace, plural, name, subresource = found.groups(default="")
        here, everywhere = f"{api}{namespace}/{plural}", f"{api}/{plural}"
        return cls(here + name, _BY_COLLECTION.get(everywhere), (here, everywhere), not name, subresource or None)

    def kinds(self, verb: str) -> tuple[str, ...]:
        """The keys of `ApiServer.refused`."""
        place, _, plural = self.collections[0].rpartition("/")
        return plural, f"{place.rpartition('/')[2]}/{plural}", f"{verb} {plural}"


def _named(verb: str, resource: Resource, at: Target, params: Mapping[str, str], body: Any, type_: str) -> str:
    """A request as `ApiServer.calls` has it."""
    if verb == "patch" and type_ == APPLY:
        if "dryRun" in params:
            return f"dry-run {resource.kind}"
        by_force = " by force" if params.get("force") == "true" else ""
        return "status" if at.subresource == "status" else f"apply {resource.kind}{by_force}"
    if resource.kind == "Event" and body:
        return f"event {body['reason']}"
    uid = ((body or {}).get("preconditions") or {}).get("uid") if verb == "delete" else None
    return f"{verb} {resource.kind}" + (f" {uid}" if uid else "")


def _check(live: Json, given: Json) -> None:
    """That the object is the one, and as old, as is given."""
    for name in ("uid", "resourceVersion"):
        if name in given and given[name] != live["metadata"].get(name):
            raise Conflict(f"{name} mismatch", code=409, reason="Conflict")


def _is_selected(obj: Json, params: Mapping[str, str]) -> bool:
    """Labels by `name`, `!name`, `name=value` and `name in (value,value)`, fields by `path=value`."""
    metadata = obj["metadata"] if isinstance(obj["metadata"], dict) else {}
    labels = metadata.get("labels") or {}
    expressions = re.findall(r"(!?)([^=,() ]+)(?:(=)([^,]*)| in \(([^)]*)\))?(?:,|$)", params.get("labelSelector", ""))
    for absent, name, equal, one, several in expressions:
        wanted = {one} if equal else {*several.split(",")} - {""}
        if (name in labels) == bool(absent) or (wanted and labels[name] not in wanted):
            return False
    for field in filter(None, params.get("fieldSelector", "").split(",")):
        way, _, value = field.partition("=")
        found: Any = obj
        for step in way.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        if found != value:
            return False
    return True


def _response(found: Any, verb: str, path: str) -> web.Response:
    """JSON, a text, or a refusal: its code, or that and the message."""
    if isinstance(found, str):
        return web.Response(text=found)
    if isinstance(found, int):
        return status(found, message=f'User "me" cannot {verb} resource "{path}": {found}')
    return status(found[0], message=found[1]) if isinstance(found, tuple) else web.json_response(found)


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
    everything = [*WATCHED, NAMESPACE, RESOURCES["Event"], CRD]
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
