"""`llmservice history`, `rollback` and `update` against a real HTTP server that plays the API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode

from tests.support.http_servers import cluster

BASE = "/apis/llmservice.dev/v1alpha1"
SERVICES = f"{BASE}/namespaces/team/llmservices"
MERGE = "application/merge-patch+json"


def service(name: str = "chat", pinned: str | None = None, **rollout: Any) -> dict[str, Any]:
    told = {"revision": "cccccccccc", "stableRevision": "cccccccccc", **rollout}
    spec = {"rollout": {"pinnedRevision": pinned}} if pinned else {}
    metadata: dict[str, Any] = {"name": name, "namespace": "team"}
    return {"metadata": metadata, "spec": spec, "status": {"rollout": told}}


def revision(letter: str, number: int, *args: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "server", "image": "vllm:1", "args": list(args)}]}}
    return {
        "metadata": {
            "name": f"chat-{letter * 10}",
            "labels": {"llmservice.dev/revision": letter * 10},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "revision": number,
        "data": {"template": template},
    }


@dataclass
class Api:
    services: dict[str, dict[str, Any]] = field(default_factory=lambda: {"chat": service()})
    revisions: list[dict[str, Any]] = field(
        default_factory=lambda: [
            revision("a", 1, "--dtype", "float32"),
            revision("c", 3, "--dtype", "float16", "--max-num-seqs=8"),
            revision("b", 2, "--dtype", "float32", "--max-num-seqs=8"),
        ]
    )
    patches: list[tuple[str, Any]] = field(default_factory=list)
    strict: bool = True

    async def answer(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix(f"{SERVICES}/")
        if request.method == "PATCH":
            assert request.content_type == MERGE
            assert request.query["fieldManager"] == "llmservice-cli"
            self.strict = request.query["fieldValidation"] == "Strict"
            self.patches.append((name, await request.json()))
            return web.json_response(self.services[name])
        if request.path in (SERVICES, f"{BASE}/llmservices"):
            return web.json_response({"items": list(self.services.values())})
        if name in self.services:
            return web.json_response(self.services[name])
        if request.path == "/apis/apps/v1/namespaces/team/controllerrevisions":
            assert request.query["labelSelector"] == "llmservice.dev/service=chat"
            return web.json_response({"items": self.revisions})
        return web.json_response({"kind": "Status", "code": 404, "message": "not found"}, status=404)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    made = Api()
    async with cluster(made.answer, tmp_path, monkeypatch):
        yield made


async def run(*words: str) -> None:
    options = make_parser(words).parse_args(words)
    assert await options.run(options) == ExitCode.DONE


def pin(label: str | None) -> tuple[str, Any]:
    return "chat", {"spec": {"rollout": {"pinnedRevision": label}}}


async def test_history_says_what_changed_with_each_revision(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.services["chat"] = service(revision="cccccccccc", stableRevision="bbbbbbbbbb", failedRevision="cccccccccc")
    await run("history", "chat")
    header, third, second, first = capsys.readouterr().out.splitlines()
    assert header.split() == ["NUMBER", "REVISION", "AGE", "STANDING", "CHANGE"]
    assert third.split(maxsplit=3)[:2] == ["3", "cccccccccc"]
    assert "runs, failed" in third
    assert third.endswith("--dtype: float32 -> float16")
    assert "last rolled out" in second
    assert second.endswith("--max-num-seqs: 8")
    assert first.endswith("the oldest that is recorded")


async def test_history_as_json(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    await run("history", "chat", "-o", "json")
    told = json.loads(capsys.readouterr().out)
    assert [(each["revision"], each["number"]) for each in told["revisions"]] == [
        ("cccccccccc", 3), ("bbbbbbbbbb", 2), ("aaaaaaaaaa", 1),
    ]  # fmt: skip
    assert told["revisions"][0]["standing"] == "runs, last rolled out"


@pytest.mark.parametrize(
    ("rollout", "words", "pinned"),
    [
        pytest.param({}, (), "bbbbbbbbbb", id="the one before"),
        pytest.param({"stableRevision": "aaaaaaaaaa"}, (), "aaaaaaaaaa", id="a rollout that is stuck: what was stable"),
        pytest.param({"failedRevision": "bbbbbbbbbb"}, (), "aaaaaaaaaa", id="never to one that failed"),
        pytest.param({}, ("--to", "aaaaaaaaaa"), "aaaaaaaaaa", id="by its name"),
        pytest.param({}, ("--to", "1"), "aaaaaaaaaa", id="by its number"),
    ],
)
async def test_rollback_pins_a_revision(
    api: Api, rollout: dict[str, Any], words: tuple[str, ...], pinned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.services["chat"] = service(**rollout)
    await run("rollback", "chat", *words)
    assert api.patches == [pin(pinned)]
    assert api.strict  # an older CRD would drop the field, and nothing would happen
    printed = capsys.readouterr().out
    assert f"revision {pinned} is pinned" in printed
    assert "llmservice rollback chat -n team --undo" in printed


async def test_undo_removes_the_pin(api: Api) -> None:
    api.services["chat"] = service(pinned="bbbbbbbbbb")
    await run("rollback", "chat", "--undo")
    assert api.patches == [pin(None)]


async def test_what_is_so_already_is_not_written(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    await run("rollback", "chat", "--undo")
    api.services["chat"] = service(pinned="bbbbbbbbbb")
    await run("rollback", "chat", "--to", "2")
    assert api.patches == []
    assert capsys.readouterr().out.splitlines() == [
        "chat: nothing is pinned", "chat: revision bbbbbbbbbb is pinned already",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "revisions", "message"),
    [
        pytest.param(("--to", "9"), 3, "choose one of: cccccccccc (3), bbbbbbbbbb (2)", id="no such revision"),
        pytest.param(("--to", "9"), 0, "nothing is recorded yet", id="nothing recorded"),
        pytest.param((), 0, "llmservice history", id="nothing before"),
    ],
)
async def test_a_rollback_that_cannot_be_writes_nothing(
    api: Api, words: tuple[str, ...], revisions: int, message: str
) -> None:
    api.revisions = api.revisions[:revisions]
    with pytest.raises(CliError) as caught:
        await run("rollback", "chat", *words)
    assert message in str(caught.value)
    assert api.patches == []


@pytest.mark.parametrize(
    ("metadata", "note"),
    [
        pytest.param({}, None, id="by hand"),
        pytest.param({"annotations": {"argocd.argoproj.io/tracking-id": "x"}}, "applied from Git", id="Argo CD"),
        pytest.param({"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}}, "applied from Git", id="Flux"),
        pytest.param(
            {
                "managedFields": [
                    {"manager": "llmservice-cli", "fieldsV1": {"f:spec": {"f:rollout": {"f:pinnedRevision": {}}}}},
                    {"manager": "argocd", "fieldsV1": {"f:spec": {"f:rollout": {"f:pinnedRevision": {}}}}},
                ]
            },
            "argocd has set the field before", id="another manager's field",
        ),
    ],
)  # fmt: skip
async def test_who_may_take_it_back_is_told(
    api: Api, metadata: dict[str, Any], note: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    api.services["chat"]["metadata"] |= metadata
    await run("rollback", "chat")
    printed = capsys.readouterr().out
    assert ("note:" in printed) == (note is not None)
    assert (note or "") in printed


async def test_update_asks_for_what_waits(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.services = {
        "chat": service(updatePending=True),
        "code": service("code"),
        "new": {**service("new"), "status": {}},
    }
    await run("update", "--all")
    await run("update", "code")
    assert [name for name, _ in api.patches] == ["chat", "code"]
    ((annotation, moment),) = api.patches[0][1]["metadata"]["annotations"].items()
    assert annotation == "llmservice.dev/update-requested"
    assert moment.endswith("Z")
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "team/chat: update requested", "team/code: update requested; nothing was known to wait in it",
    ]  # fmt: skip


async def test_update_with_nothing_to_do(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    await run("update", "--all", "-A")
    assert api.patches == []
    assert capsys.readouterr().out == "nothing waits for a rollout\n"


@pytest.mark.parametrize("words", [(), ("chat", "--all"), ("chat", "-A")])
async def test_update_of_what(api: Api, words: tuple[str, ...]) -> None:
    with pytest.raises(CliError, match="NAMEs or --all"):
        await run("update", *words)
    assert api.patches == []
