"""The client against a real HTTP server that plays the API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from llmservice_operator.kube import errors
from llmservice_operator.kube.client import AlwaysOpen, Gate, KubeClient
from llmservice_operator.kube.credentials import Credentials, Token
from llmservice_operator.kube.resources import CONFIG_MAP, DEPLOYMENT, EVENT, LLMSERVICE, POD, resource_of
from llmservice_operator.kube.transport import Transport

from tests.support.http_servers import application

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DEPLOY = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "ns", "name": "chat"}}


class Api:
    """Answers by a queue of handlers and records what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Handler] = []
        self.seen: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.seen.append((request.method, request.path, dict(request.query), json.loads(raw) if raw else None))
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


def says(code: int, body: Any, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


def status(code: int, reason: str, message: str = "", **details: Any) -> Handler:
    return says(code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details})


class Seconds:
    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def remaining(self, namespace: str) -> float:
        assert namespace == "ns"
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]


class Harness:
    def __init__(self, api: Api, transport: Transport, sleeps: list[float], observed: list[Any]) -> None:
        self.api = api
        self.transport = transport
        self.sleeps = sleeps
        self.observed = observed

    def client(self, gate: Gate | None = None) -> KubeClient:
        return KubeClient(self.transport, gate or AlwaysOpen())


@pytest.fixture
async def kube() -> AsyncIterator[Harness]:
    api, sleeps, observed = Api(), [], []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    async with application(api.answer) as url:
        credentials = Credentials(server=url, namespace="ns", token=Token.fixed("t0ken"))
        async with Transport(credentials, sleep=sleep, observer=lambda *what: observed.append(what[:3])) as transport:
            yield Harness(api, transport, sleeps, observed)


async def test_apply_names_the_manager_and_does_not_force(kube: Harness) -> None:
    kube.api.answers = [says(200, {"metadata": {"resourceVersion": "7"}})]
    answer = await kube.client().apply(DEPLOY, manager="me")
    assert answer["metadata"]["resourceVersion"] == "7"
    method, path, query, body = kube.api.seen[0]
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/ns/deployments/chat")
    assert query == {"fieldManager": "me", "force": "false"}
    assert body == DEPLOY
    assert kube.api.headers[0]["Content-Type"] == "application/apply-patch+yaml"
    assert kube.api.headers[0]["Authorization"] == "Bearer t0ken"
    assert kube.observed == [("patch", "deployments", 200)]


async def test_status_goes_to_the_subresource(kube: Harness) -> None:
    kube.api.answers = [says(200, {})]
    manifest = {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "metadata": DEPLOY["metadata"]}
    await kube.client().apply_status(manifest, manager="me-status")
    assert kube.api.seen[0][1] == "/apis/llmservice.dev/v1alpha1/namespaces/ns/llmservices/chat/status"


async def test_of_a_few_objects_no_more_than_some_megabytes_are_read(kube: Harness) -> None:
    """A hundred Events, each with as much text as etcd holds."""
    events = [{"message": "x" * 1_000_000} for _ in range(20)]
    kube.api.answers = [says(200, {"items": events}), says(200, {"items": events[:1]})]
    with pytest.raises(errors.Unreachable, match="bytes"):
        await kube.client().list_some(EVENT, "ns", field_selector="a=b", limit=100)
    assert len(await kube.client().list_some(EVENT, "ns", field_selector="a=b", limit=100)) == 1


async def test_delete_asks_for_this_very_object(kube: Harness) -> None:
    kube.api.answers = [says(200, {"kind": "Status", "status": "Success"})]
    assert await kube.client().delete(DEPLOYMENT, "ns", "chat", uid="u-1") is None
    method, _, _, body = kube.api.seen[0]
    assert method == "DELETE"
    assert body["preconditions"] == {"uid": "u-1"}
    assert body["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        pytest.param(status(400, "BadRequest", "bad"), errors.Invalid, ["bad"], id="400"),
        pytest.param(status(401, "Unauthorized", "no"), errors.Unauthorized, ["token"], id="401"),
        pytest.param(
            status(403, "Forbidden", 'deployments.apps is forbidden: User "x" cannot patch resource "deployments"'),
            errors.Forbidden,
            ["grant it: patch deployments.apps"],
            id="403 names the right",
        ),
        pytest.param(
            status(403, "Forbidden", "exceeded quota: q"), errors.Refused, ["quota"], id="403 that no right helps"
        ),
        pytest.param(
            status(403, "Forbidden", f"services x {errors.NOT_OURS}"),
            errors.NotOurs,
            ["services x"],
            id="403 by policy",
        ),
        pytest.param(status(404, "NotFound", "gone"), errors.NotFound, ["gone"], id="404"),
        pytest.param(status(409, "Conflict", "uid mismatch"), errors.Conflict, ["uid"], id="409"),
        pytest.param(status(409, "AlreadyExists", "is there"), errors.AlreadyExists, ["is there"], id="409 exists"),
        pytest.param(status(410, "Expired", "too old"), errors.Gone, ["too old"], id="410"),
        pytest.param(status(422, "Invalid", "immutable"), errors.Invalid, ["immutable"], id="422"),
        pytest.param(status(500, "InternalError", "oops"), errors.ServerError, ["oops"], id="500"),
        pytest.param(says(502, ["a", "list"]), errors.ServerError, ["list"], id="a proxy's own body"),
    ],
)
async def test_failures_become_exceptions(
    kube: Harness, answer: Handler, kind: type[Exception], words: list[str]
) -> None:
    kube.api.answers = [answer]
    with pytest.raises(kind) as caught:
        await kube.client().apply(DEPLOY, manager="me")
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "details",
    [["a"], "words", {"causes": {"0": "a"}}, {"causes": 7}, {"causes": ["a", None, {"field": ["x"]}]}],
    ids=str,
)
@pytest.mark.parametrize("code", [403, 409, 422])
def test_details_of_another_shape_leave_the_error_what_it_is(code: int, details: Any) -> None:
    error = errors.from_status(code, {"message": "no", "details": details}, right="get pods")
    assert (error.code, error.message) == (code, "no")
    assert all(isinstance(cause, dict) for cause in error.causes)


async def test_a_conflict_names_the_managers_and_their_fields(kube: Harness) -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl" using apps/v1',
            "field": ".spec.replicas",
        },
        {"reason": "FieldManagerConflict", "message": 'conflict with "helm" using apps/v1', "field": ".spec.paused"},
        {"reason": "FieldManagerConflict", "message": 'conflict with "helm" using apps/v1', "field": ".spec.x"},
    ]
    kube.api.answers = [status(409, "Conflict", "Apply failed", causes=causes)]
    with pytest.raises(errors.FieldConflict) as caught:
        await kube.client().apply(DEPLOY, manager="me")
    assert caught.value.managers == ("kubectl", "helm")
    assert caught.value.fields == (".spec.replicas", ".spec.paused", ".spec.x")


@pytest.mark.parametrize(
    ("answers", "requests", "slept", "raises"),
    [
        pytest.param(
            [says(429, {}, Retry_After="1"), says(200, {})], 2, [1.0], None, id="429 with a time is tried again"
        ),
        pytest.param([says(503, {}, Retry_After="2"), says(200, {})], 2, [2.0], None, id="503 with a time too"),
        pytest.param([says(503, {})], 1, [], errors.ServerError, id="503 without a time is not"),
        pytest.param([says(500, {})], 1, [], errors.ServerError, id="500 is not"),
        pytest.param([says(429, {}, Retry_After="1")], 4, [1.0] * 3, errors.TooMany, id="not for ever"),
        pytest.param([says(429, {}, Retry_After="60")], 1, [], errors.TooMany, id="not for a minute"),
        pytest.param([says(409, {}, Retry_After="1")], 1, [], errors.Conflict, id="a conflict is an answer"),
        pytest.param([says(401, {}), says(200, {})], 2, [], None, id="a renewed token is tried once"),
        pytest.param([says(401, {})], 2, [], errors.Unauthorized, id="only once"),
    ],
)
async def test_patience(
    kube: Harness, answers: list[Handler], requests: int, slept: list[float], raises: type[Exception] | None
) -> None:
    kube.api.answers = answers
    if raises is None:
        await kube.client().apply(DEPLOY, manager="me")
    else:
        with pytest.raises(raises):
            await kube.client().apply(DEPLOY, manager="me")
    assert (len(kube.api.seen), kube.sleeps) == (requests, slept)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda k: k.apply(DEPLOY, manager="m"), id="apply"),
        pytest.param(lambda k: k.apply_status(DEPLOY, manager="m"), id="apply_status"),
        pytest.param(lambda k: k.delete(DEPLOYMENT, "ns", "chat", uid="u"), id="delete"),
        pytest.param(lambda k: k.json_patch(DEPLOYMENT, "ns", "chat", [], manager="m"), id="json_patch"),
        pytest.param(lambda k: k.create_event({"metadata": {"namespace": "ns"}}), id="create_event"),
    ],
)
async def test_no_write_leaves_a_process_that_does_not_lead(
    kube: Harness, write: Callable[[KubeClient], Awaitable[object]]
) -> None:
    kube.api.answers = [says(200, {})]
    with pytest.raises(errors.NotLeader):
        await write(kube.client(Seconds(0.0)))
    assert kube.api.seen == []


async def test_leadership_is_asked_for_again_before_a_retry(kube: Harness) -> None:
    kube.api.answers = [says(429, {}, Retry_After="1"), says(200, {})]
    with pytest.raises(errors.NotLeader):
        await kube.client(Seconds(3.0, 0.0)).apply(DEPLOY, manager="me")
    assert len(kube.api.seen) == 1


async def test_a_write_ends_when_the_lease_could_be_anothers(kube: Harness) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        raise AssertionError("the client waited")

    kube.api.answers = [hang]
    with pytest.raises(errors.Unreachable, match=r"no answer within 0\.1 s"):
        await kube.client(Seconds(0.1)).apply(DEPLOY, manager="me")
    assert kube.observed == [("patch", "deployments", 0)]


async def test_nobody_listens() -> None:
    credentials = Credentials(server="http://127.0.0.1:1", namespace="ns", token=Token.fixed(None))
    async with Transport(credentials) as transport:
        with pytest.raises(errors.Unreachable, match="check that the API server is up"):
            await KubeClient(transport, AlwaysOpen()).get(POD, "ns", "p")


async def test_get_of_nothing_is_none(kube: Harness) -> None:
    kube.api.answers = [status(404, "NotFound")]
    assert await kube.client().get(LLMSERVICE, "ns", "chat") is None


async def test_lists_come_in_pages(kube: Harness) -> None:
    kube.api.answers = [
        says(200, {"metadata": {"resourceVersion": "5", "continue": "more"}, "items": [1]}),
        says(200, {"metadata": {"resourceVersion": "5"}, "items": [2]}),
    ]
    pages = [p async for p in kube.client().list_pages(POD, None, label_selector="x", limit=1)]
    assert [page["items"] for page in pages] == [[1], [2]]
    assert kube.api.seen[0][1:3] == ("/api/v1/pods", {"limit": "1", "labelSelector": "x"})
    assert kube.api.seen[1][2]["continue"] == "more"


def test_a_manifest_of_an_unknown_version_is_a_bug() -> None:
    assert resource_of(DEPLOY) is DEPLOYMENT
    with pytest.raises(KeyError):
        resource_of({"apiVersion": "apps/v2", "kind": "Deployment"})


THERE = {"name": "c", "uid": "u", "resourceVersion": "7", "ownerReferences": []}


@pytest.mark.parametrize(
    ("code", "metadata", "found"),
    [
        pytest.param(200, THERE, THERE, id="there"),
        pytest.param(201, {"name": "c", "uid": "made up"}, None, id="a dry run would make it"),
    ],
)
async def test_what_may_not_be_read_is_looked_at(
    kube: Harness, code: int, metadata: dict[str, Any], found: dict[str, Any] | None
) -> None:
    kube.api.answers = [says(code, {"kind": "PartialObjectMetadata", "metadata": metadata})]
    assert await kube.client().metadata_of(CONFIG_MAP, "ns", "c") == found
    (method, path, query, body) = kube.api.seen[-1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/configmaps/c")
    assert query == {"fieldManager": "llmservice-operator-look", "force": "false", "dryRun": "All"}
    assert body == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns"}}
    assert "PartialObjectMetadata" in kube.api.headers[-1]["Accept"], "its contents are never sent"
