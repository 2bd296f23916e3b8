"""The client against a real HTTP server that plays the API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from kubeloop import errors
from kubeloop.client import AlwaysOpen, Gate, KubeClient
from kubeloop.credentials import Credentials, Token
from kubeloop.resources import CONFIG_MAP, DEPLOYMENT, EVENT, POD, Resource
from kubeloop.transport import Transport, with_subresource
from llmservice_api.constants import DRY_RUN_MANAGER, LLMSERVICE, resource_of

from tests.unit.api_server import ApiServer, Handler, over_http, reply

DEPLOY = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "ns", "name": "chat"}}


def status(code: int, reason: str, message: str = "", **details: Any) -> Handler:
    return reply(code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details})


class Seconds:
    """A gate that is open for so long, asked again and again; the last value stays."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def remaining(self) -> float:
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]


@dataclass
class Harness:
    api: ApiServer
    transport: Transport
    sleeps: list[float]
    observed: list[Any]

    def client(self, gate: Gate | None = None) -> KubeClient:
        return KubeClient(self.transport, gate or AlwaysOpen())

    async def apply(self, *answers: Handler, gate: Gate | None = None) -> dict[str, Any]:
        self.api.script = list(answers)
        return await self.client(gate).apply(DEPLOYMENT, DEPLOY, manager="me")


@pytest.fixture
async def kube() -> AsyncIterator[Harness]:
    api, sleeps, observed = ApiServer(), [], []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    observer: dict[str, Any] = {"sleep": sleep, "observer": lambda *what: observed.append(what[:3])}
    async with over_http(api, Token.fixed("t0ken"), **observer) as transport:
        yield Harness(api, transport, sleeps, observed)


async def test_apply_names_the_manager_and_does_not_force(kube: Harness) -> None:
    answer = await kube.apply(reply(200, {"metadata": {"resourceVersion": "7"}}))
    assert answer["metadata"]["resourceVersion"] == "7"
    path, query = "/apis/apps/v1/namespaces/ns/deployments/chat", {"fieldManager": "me", "force": "false"}
    assert kube.api.requests == [("PATCH", path, query, DEPLOY)]
    assert kube.api.headers[0]["Content-Type"] == "application/apply-patch+yaml"
    assert kube.api.headers[0]["Authorization"] == "Bearer t0ken"
    assert kube.observed == [("patch", "deployments", 200)]


def with_image_volume(**source: object) -> dict[str, Any]:
    volumes = [{"name": "scratch", "emptyDir": {}}, {"name": "model", **source}]
    return {**DEPLOY, "spec": {"template": {"spec": {"volumes": volumes}}}}


async def test_an_image_volume_that_the_server_would_leave_out_is_refused(kube: Harness) -> None:
    """As a dry run shows, of the first object that has one."""
    manifest, client = with_image_volume(image={"reference": "m:1"}), kube.client()
    kube.api.script = [reply(200, with_image_volume())]
    with pytest.raises(errors.Invalid, match="feature gate ImageVolume"):
        await client.apply(DEPLOYMENT, manifest, manager="me")
    kube.api.script = [reply(200, manifest)]
    for _ in range(2):
        assert await client.apply(DEPLOYMENT, manifest, manager="me") == manifest
    assert ["dryRun" in query for _, _, query, _ in kube.api.requests] == [True, True, False, False]


async def test_status_goes_to_the_subresource_by_force(kube: Harness) -> None:
    kube.api.script = [reply(200, {})]
    manifest = {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "metadata": DEPLOY["metadata"]}
    await kube.client().apply_status(LLMSERVICE, manifest, manager="me-status")
    _, path, query, _ = kube.api.requests[0]
    assert path == "/apis/llmservice.dev/v1alpha1/namespaces/ns/llmservices/chat/status"
    assert query == {"fieldManager": "me-status", "force": "true"}


async def test_of_a_few_objects_no_more_than_some_megabytes_are_read(kube: Harness) -> None:
    """A hundred Events, each with as much text as etcd holds."""
    events = [{"message": "x" * 1_000_000} for _ in range(20)]
    kube.api.script = [reply(200, {"items": events}), reply(200, {"items": events[:1]})]
    with pytest.raises(errors.Unreachable, match="bytes"):
        await kube.client().list_some(EVENT, "ns", field_selector="a=b", limit=100)
    assert len(await kube.client().list_some(EVENT, "ns", field_selector="a=b", limit=100)) == 1


async def test_delete_has_the_uid_as_precondition(kube: Harness) -> None:
    kube.api.script = [reply(200, {"kind": "Status", "status": "Success"})]
    assert await kube.client().delete(DEPLOYMENT, "ns", "chat", uid="u-1") is None
    method, _, _, body = kube.api.requests[0]
    assert method == "DELETE"
    assert body["preconditions"] == {"uid": "u-1"}
    assert body["propagationPolicy"] == "Background"


NO_RIGHT = 'deployments.apps is forbidden: User "x" cannot patch resource "deployments"'
FAILURES: list[tuple[Handler, type[Exception], str]] = [
    (status(400, "BadRequest", "bad"), errors.Invalid, "bad"),
    (status(401, "Unauthorized", "no"), errors.Unauthorized, "token"),
    (status(403, "Forbidden", NO_RIGHT), errors.Forbidden, "grant it: patch deployments.apps"),
    (status(403, "Forbidden", "exceeded quota: q"), errors.Refused, "quota"),
    (status(403, "Forbidden", f"services x {errors.FOREIGN_OBJECT}"), errors.ForeignObject, "services x"),
    (status(404, "NotFound", "gone"), errors.NotFound, "gone"),
    (status(409, "Conflict", "uid mismatch"), errors.Conflict, "uid"),
    (status(409, "AlreadyExists", "is there"), errors.AlreadyExists, "is there"),
    (status(410, "Expired", "too old"), errors.Gone, "too old"),
    (status(422, "Invalid", "immutable"), errors.Invalid, "immutable"),
    (status(500, "InternalError", "oops"), errors.ServerError, "oops"),
    (
        status(500, "", "failed to create typed patch object (a/b): .spec.c: field not declared in schema"),
        errors.Invalid,
        ".spec.c: field not declared in schema: this version of Kubernetes does not know it; remove it, or upgrade",
    ),
    (reply(502, ["a", "list of a proxy"]), errors.ServerError, "list"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), FAILURES)
async def test_failures_become_exceptions(kube: Harness, answer: Handler, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        await kube.apply(answer)
    assert type(caught.value) is kind
    assert text in str(caught.value)


DETAILS: list[Any] = [["a"], "words", {"causes": {"0": "a"}}, {"causes": 7}, {"causes": ["a", None, {"field": ["x"]}]}]


@pytest.mark.parametrize("details", DETAILS, ids=str)
@pytest.mark.parametrize("code", [403, 409, 422])
def test_details_of_another_shape_are_ignored(code: int, details: Any) -> None:
    error = errors.from_status(code, {"kind": "Status", "message": "no", "details": details}, right="get pods")
    assert (error.code, error.message) == (code, "no")
    assert all(isinstance(cause, dict) for cause in error.causes)


async def test_a_conflict_names_the_managers_and_their_fields(kube: Harness) -> None:
    owned = {".spec.replicas": "kubectl", ".spec.paused": "helm", ".spec.x": "helm"}
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}" using apps/v1', "field": field}
        for field, manager in owned.items()
    ]
    with pytest.raises(errors.FieldConflict) as caught:
        await kube.apply(status(409, "Conflict", "Apply failed", causes=causes))
    assert caught.value.managers == ("kubectl", "helm")
    assert caught.value.fields == tuple(owned)


def later(code: int, seconds: str) -> Handler:
    return reply(code, {}, Retry_After=seconds)


DONE = reply(200, {})
RETRIES: dict[str, tuple[list[Handler], int, list[float], type[Exception] | None]] = {
    "429 with a time": ([later(429, "1"), DONE], 2, [1.0], None),
    "503 with a time": ([later(503, "2"), DONE], 2, [2.0], None),
    "503 without a time": ([reply(503, {})], 1, [], errors.ServerError),
    "500": ([reply(500, {})], 1, [], errors.ServerError),
    "not for ever": ([later(429, "1")], 4, [1.0] * 3, errors.TooManyRequests),
    "not for a minute": ([later(429, "60")], 1, [], errors.TooManyRequests),
    "a conflict is final": ([status(409, "Conflict", "no")], 1, [], errors.Conflict),
    "a renewed token": ([reply(401, {}), DONE], 2, [], None),
    "a token that is refused again": ([reply(401, {})], 2, [], errors.Unauthorized),
}


@pytest.mark.parametrize("case", RETRIES)
async def test_retries(kube: Harness, case: str) -> None:
    handlers, requests, slept, raises = RETRIES[case]
    with contextlib.nullcontext() if raises is None else pytest.raises(raises):
        await kube.apply(*handlers)
    assert (len(kube.api.requests), kube.sleeps) == (requests, slept)


WRITES: dict[str, Callable[[KubeClient], Awaitable[object]]] = {
    "apply": lambda k: k.apply(DEPLOYMENT, DEPLOY, manager="m"),
    "apply_status": lambda k: k.apply_status(DEPLOYMENT, DEPLOY, manager="m"),
    "delete": lambda k: k.delete(DEPLOYMENT, "ns", "chat", uid="u"),
    "json_patch": lambda k: k.json_patch(DEPLOYMENT, "ns", "chat", [], manager="m"),
    "create_event": lambda k: k.create_event({"metadata": {"namespace": "ns"}}),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_process_that_does_not_lead_sends_no_write(kube: Harness, write: str) -> None:
    kube.api.script = [DONE]
    with pytest.raises(errors.NotLeader):
        await WRITES[write](kube.client(Seconds(0.0)))
    assert kube.api.requests == []


async def test_leadership_is_checked_again_before_a_retry(kube: Harness) -> None:
    with pytest.raises(errors.NotLeader):
        await kube.apply(later(429, "1"), DONE, gate=Seconds(3.0, 0.0))
    assert len(kube.api.requests) == 1


async def test_a_write_ends_before_the_lease_may_be_another_s(kube: Harness) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        raise AssertionError("the client waited")

    with pytest.raises(errors.Unreachable, match=r"no answer within 0\.1 s"):
        await kube.apply(hang, gate=Seconds(0.1))
    assert kube.observed == [("patch", "deployments", 0)]


async def test_an_api_server_that_is_away() -> None:
    credentials = Credentials(server="http://127.0.0.1:1", namespace="ns", token=Token.fixed(None))
    async with Transport(credentials) as transport:
        with pytest.raises(errors.Unreachable, match="check that the API server is up"):
            await KubeClient(transport, AlwaysOpen()).get(POD, "ns", "p")


async def test_an_object_that_is_not_found_is_none(kube: Harness) -> None:
    kube.api.script = [status(404, "NotFound")]
    assert await kube.client().get(LLMSERVICE, "ns", "chat") is None


async def test_lists_come_in_pages(kube: Harness) -> None:
    kube.api.script = [
        reply(200, {"metadata": {"resourceVersion": "5", "continue": "more"}, "items": [1]}),
        reply(200, {"metadata": {"resourceVersion": "5"}, "items": [2]}),
    ]
    pages = [p async for p in kube.client().list_pages(POD, None, label_selector="x", limit=1)]
    assert [page["items"] for page in pages] == [[1], [2]]
    assert kube.api.requests[0][1:3] == ("/api/v1/pods", {"limit": "1", "labelSelector": "x"})
    assert kube.api.requests[1][2]["continue"] == "more"


def test_a_manifest_of_an_unknown_version_is_a_bug() -> None:
    assert resource_of(DEPLOY) is DEPLOYMENT
    with pytest.raises(KeyError):
        resource_of({"apiVersion": "apps/v2", "kind": "Deployment"})


METADATA = {"name": "c", "uid": "u", "resourceVersion": "7", "ownerReferences": []}


@pytest.mark.parametrize(("code", "metadata", "found"), [(200, METADATA, METADATA), (201, {"name": "c"}, None)])
async def test_metadata_is_read_by_a_dry_run_that_would_create_what_is_missing(
    kube: Harness, code: int, metadata: dict[str, Any], found: dict[str, Any] | None
) -> None:
    kube.api.script = [reply(code, {"kind": "PartialObjectMetadata", "metadata": metadata})]
    assert await kube.client().metadata_of(CONFIG_MAP, "ns", "c", manager=DRY_RUN_MANAGER) == found
    (method, path, query, body) = kube.api.requests[-1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/configmaps/c")
    assert query == {"fieldManager": "llmservice-operator-look", "force": "false", "dryRun": "All"}
    assert body == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns"}}
    assert "PartialObjectMetadata" in kube.api.headers[-1]["Accept"], "its contents are never sent"


RIGHTS: dict[str, tuple[Resource, str, str]] = {
    "a list": (POD, "/api/v1/namespaces/team/pods", "pods"),
    "an object": (POD, "/api/v1/namespaces/team/pods/chat", "pods"),
    "a log": (POD, "/api/v1/namespaces/team/pods/chat/log", "pods/log"),
    "a pod's page": (POD, "/api/v1/namespaces/team/pods/chat:8000/proxy/status/pods/x", "pods/proxy"),
    "names that are words of paths": (POD, "/api/v1/namespaces/pods/pods/pods/log", "pods/log"),
    "a status": (LLMSERVICE, LLMSERVICE.path("team", "chat", "status"), "llmservices.llmservice.dev/status"),
    "without a namespace": (Resource("", "v1", "nodes", "Node"), "/api/v1/nodes/a/proxy/metrics", "nodes/proxy"),
}


@pytest.mark.parametrize("case", RIGHTS)
def test_a_right_names_the_subresource(case: str) -> None:
    resource, path, expected = RIGHTS[case]
    assert with_subresource(resource, path) == expected


# Status, its body, what is raised: only the API server's own Status says something of the object.
IN_BETWEEN: list[tuple[int, dict[str, str], type[Exception]]] = [
    (413, {"message": "<html>Request Entity Too Large</html>"}, errors.ProxyRefusal),
    (408, {}, errors.ProxyRefusal),
    (403, {"message": "blocked by the firewall"}, errors.ProxyRefusal),
    (403, {"message": "quota of your address exceeded"}, errors.ProxyRefusal),
    (403, {"message": 'User "x" cannot patch resource "services"'}, errors.ProxyRefusal),
    (403, {}, errors.ProxyRefusal),
    (404, {"message": "<html>no such host</html>"}, errors.ProxyRefusal),
    (409, {"reason": "AlreadyExists", "message": "a session exists"}, errors.ProxyRefusal),
    (410, {"message": "moved"}, errors.ProxyRefusal),
    (503, {"message": "no backend"}, errors.ServerError),
    # These the API server answers without a Status.
    (404, {"message": "404 page not found"}, errors.NotFound),
    (429, {"message": "Too many requests, please try again later."}, errors.TooManyRequests),
    (401, {"message": "Unauthorized"}, errors.Unauthorized),
    (422, {"kind": "Status", "message": "spec.replicas: Invalid value"}, errors.Invalid),
    (413, {"kind": "Status", "message": "limit is 3145728"}, errors.Invalid),
    (408, {"kind": "Status", "reason": "Timeout", "message": "request did not complete"}, errors.ServerError),
]


@pytest.mark.parametrize(("code", "body", "kind"), IN_BETWEEN)
def test_a_proxys_refusal_is_no_fault_of_the_object(code: int, body: dict[str, str], kind: type[Exception]) -> None:
    error = errors.from_status(code, body, right="patch services")
    assert type(error) is kind
    assert body.get("message", "")[:20] in error.message
    if isinstance(error, errors.ServerError) and "kind" not in body:
        assert f"HTTP {code}, and not from the API server" in error.message
