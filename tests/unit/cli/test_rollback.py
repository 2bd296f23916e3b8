"""`llmservice history`, `rollback` and `update`: what they print, and the merge patches that they send."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_cli.errors import CliError

from tests.unit.api_server import ApiServer
from tests.unit.cli_world import SERVICES, Command, Json

REVISIONS = "/apis/apps/v1/namespaces/team/controllerrevisions"


def service(name: str = "chat", pinned: str | None = None, **rollout: Any) -> Json:
    rollout = {"revision": "cccccccccc", "stableRevision": "cccccccccc", **rollout}
    spec = {"rollout": {"pinnedRevision": pinned}} if pinned else {}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}"},
        "spec": spec,
        "status": {"rollout": rollout},
    }


def revision(letter: str, number: int, *args: str) -> Json:
    template = {"spec": {"containers": [{"name": "server", "image": "vllm:1", "args": list(args)}]}}
    labels = {"llmservice.dev/revision": letter * 10, "llmservice.dev/service": "chat"}
    metadata = {"name": f"chat-{letter * 10}", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "revision": number, "data": {"template": template}}


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    api_server.objects = {
        f"{SERVICES}/chat": service(),
        f"{REVISIONS}/a": revision("a", 1, "--dtype", "float32"),
        f"{REVISIONS}/c": revision("c", 3, "--dtype", "float16", "--max-num-seqs=8"),
        f"{REVISIONS}/b": revision("b", 2, "--dtype", "float32", "--max-num-seqs=8"),
    }
    return api_server


def pin(label: str | None) -> tuple[str, Any]:
    return "chat", {"spec": {"rollout": {"pinnedRevision": label}}}


async def test_history_shows_what_changed_with_each_revision(api: ApiServer, llmservice: Command) -> None:
    rollout = {"stableRevision": "bbbbbbbbbb", "failedRevision": "cccccccccc"}
    api.objects[f"{SERVICES}/chat"] = service(**rollout)
    header, third, second, first = (await llmservice.within("history", "chat")).out.splitlines()
    assert header.split() == ["NUMBER", "REVISION", "AGE", "STANDING", "CHANGE"]
    assert third.split(maxsplit=3)[:2] == ["3", "cccccccccc"]
    assert "runs, failed" in third
    assert third.endswith("--dtype: float32 -> float16")
    assert "last rolled out" in second
    assert second.endswith("--max-num-seqs: 8")
    assert first.endswith("the oldest that is recorded")
    revisions = (await llmservice.within("history", "chat", "-o", "json")).json["revisions"]
    assert [(each["revision"], each["number"]) for each in revisions] == [
        ("cccccccccc", 3), ("bbbbbbbbbb", 2), ("aaaaaaaaaa", 1),
    ]  # fmt: skip
    assert revisions[0]["standing"] == "runs, failed"


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
    api: ApiServer, rollout: dict[str, Any], words: tuple[str, ...], pinned: str, llmservice: Command
) -> None:
    api.objects[f"{SERVICES}/chat"] = service(**rollout)
    out = (await llmservice.within("rollback", "chat", *words)).out
    assert api.sent("PATCH") == [pin(pinned)]
    # Not Strict, an older CRD would drop the field, and nothing would happen.
    assert api.requests[-1][2] == {"fieldManager": "llmservice-cli", "fieldValidation": "Strict"}
    assert f"revision {pinned} is pinned" in out
    assert "llmservice rollback chat -n team --undo" in out


async def test_undo_removes_the_pin_and_nothing_is_written_twice(api: ApiServer, llmservice: Command) -> None:
    assert (await llmservice.within("rollback", "chat", "--undo")).out == "chat: nothing is pinned\n"
    api.objects[f"{SERVICES}/chat"] = service(pinned="bbbbbbbbbb")
    out = (await llmservice.within("rollback", "chat", "--to", "2")).out
    assert (out, api.sent("PATCH")) == ("chat: revision bbbbbbbbbb is pinned already\n", [])
    await llmservice.within("rollback", "chat", "--undo")
    assert api.sent("PATCH") == [pin(None)]


@pytest.mark.parametrize(
    ("words", "recorded", "message"),
    [
        pytest.param(("--to", "9"), "abc", "choose one of: cccccccccc (3), bbbbbbbbbb (2)", id="no such revision"),
        pytest.param(("--to", "9"), "", "nothing is recorded yet", id="nothing recorded"),
        pytest.param((), "", "kubectl edit llms chat -n team", id="nothing before"),
        pytest.param((), "c", "kubectl edit llms chat -n team", id="the current one alone"),
    ],
)
async def test_a_rollback_that_cannot_be_writes_nothing(
    api: ApiServer, words: tuple[str, ...], recorded: str, message: str, llmservice: Command
) -> None:
    for letter in set("abc") - set(recorded):
        del api.objects[f"{REVISIONS}/{letter}"]
    with pytest.raises(CliError) as caught:
        await llmservice.within("rollback", "chat", *words)
    assert message in str(caught.value)
    assert api.sent("PATCH") == []


def set_by(manager: str) -> dict[str, Any]:
    return {"manager": manager, "fieldsV1": {"f:spec": {"f:rollout": {"f:pinnedRevision": {}}}}}


@pytest.mark.parametrize(
    ("metadata", "note"),
    [
        pytest.param({}, None, id="by hand"),
        pytest.param({"annotations": {"argocd.argoproj.io/tracking-id": "x"}}, "applied from Git", id="Argo CD"),
        pytest.param({"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}}, "applied from Git", id="Flux"),
        pytest.param(
            {"managedFields": [set_by("llmservice-cli"), set_by("argocd")]}, "argocd has set the field before",
            id="another manager's field",
        ),
    ],
)  # fmt: skip
async def test_who_may_set_the_field_again_is_noted(
    api: ApiServer, metadata: dict[str, Any], note: str | None, llmservice: Command
) -> None:
    api.objects[f"{SERVICES}/chat"]["metadata"] |= metadata
    out = (await llmservice.within("rollback", "chat")).out
    assert ("note:" in out) == (note is not None)
    assert (note or "") in out


async def test_update_asks_for_what_waits(api: ApiServer, llmservice: Command) -> None:
    assert (await llmservice.within("update", "--all", "-A")).out == "nothing waits for a rollout\n"
    api.objects[f"{SERVICES}/chat"] = service(updatePending=True)
    api.objects[f"{SERVICES}/code"] = service("code")
    api.objects[f"{SERVICES}/new"] = {**service("new"), "status": {}}
    assert (await llmservice.within("update", "--all")).out == "team/chat: update requested\n"
    out = (await llmservice.within("update", "code")).out
    assert out == "team/code: update requested; nothing was known to wait in it\n"
    assert [name for name, _ in api.sent("PATCH")] == ["chat", "code"]
    ((annotation, moment),) = api.sent("PATCH")[0][1]["metadata"]["annotations"].items()
    assert annotation == "llmservice.dev/update-requested"
    assert moment.endswith("Z")


@pytest.mark.parametrize("words", [(), ("chat", "--all"), ("chat", "-A")])
async def test_update_of_what(api: ApiServer, words: tuple[str, ...], llmservice: Command) -> None:
    with pytest.raises(CliError, match="NAMEs or --all"):
        await llmservice.within("update", *words)
    assert api.requests == []


@pytest.mark.parametrize(
    ("words", "said", "document"),
    [
        pytest.param(
            ("rollback", "chat"),
            "chat: would pin revision bbbbbbbbbb; nothing is changed",
            {"version": 1, "name": "chat", "namespace": "team", "pinnedRevision": "bbbbbbbbbb", "changed": False},
            id="rollback",
        ),
        pytest.param(
            ("update", "chat"),
            "team/chat: an update would be requested; nothing is changed; nothing was known to wait in it",
            {
                "version": 1,
                "services": [{"name": "chat", "namespace": "team", "requested": False, "wasPending": False}],
            },
            id="update",
        ),
    ],
)
async def test_a_dry_run_changes_nothing(
    api: ApiServer, words: tuple[str, ...], said: str, document: Json, llmservice: Command
) -> None:
    assert (await llmservice.within(*words, "--dry-run")).out == f"{said}\n"
    assert (await llmservice.within(*words, "--dry-run", "--wait", "-o", "json")).json == document
    assert api.sent("PATCH") == []


async def test_what_was_done_for_programs(api: ApiServer, llmservice: Command) -> None:
    ran = await llmservice.within("rollback", "chat", "-o", "json")
    assert (ran.json["changed"], ran.json["pinnedRevision"]) == (True, "bbbbbbbbbb")
    assert api.sent("PATCH") == [pin("bbbbbbbbbb")]


@pytest.mark.parametrize("words", [("rollback", "chat"), ("update", "chat")])
async def test_wait_ends_as_the_command_wait_does(api: ApiServer, words: tuple[str, ...], llmservice: Command) -> None:
    """A list of one is what `wait` begins with; the service cannot become Ready."""
    found = service()
    stalled = {"type": "Stalled", "status": "True", "reason": "DoesNotFit", "message": "It is too large."}
    found["status"] |= {"observedGeneration": 1, "conditions": [stalled]}
    found["metadata"]["generation"] = 1
    api.objects[f"{SERVICES}/chat"] = found
    api.answers[f"GET {SERVICES}"] = {"metadata": {"resourceVersion": "7"}, "items": [found]}
    ran = await llmservice.within(*words, "--wait", "--timeout", "5s")
    assert (ran.code, "cannot become Ready: DoesNotFit" in ran.err) == (1, True)


def test_two_ways_of_a_rollback_are_refused(llmservice: Command) -> None:
    ran = llmservice("rollback", "chat", "--undo", "--to", "3")
    assert (ran.code, "give one of them" in ran.err) == (2, True)


async def test_a_document_is_alone_on_standard_output(api: ApiServer, llmservice: Command) -> None:
    """What --wait found follows on standard error."""
    found = service()
    ready = {"type": "Ready", "status": "True", "reason": "RolledOut", "message": "", "observedGeneration": 1}
    found["status"] |= {"observedGeneration": 1, "conditions": [ready]}
    found["metadata"]["generation"] = 1
    api.objects[f"{SERVICES}/chat"] = found
    api.answers[f"GET {SERVICES}"] = {"metadata": {"resourceVersion": "7"}, "items": [found]}
    ran = await llmservice.within("rollback", "chat", "--wait", "-o", "json")
    assert (ran.code, ran.json["changed"], ran.err) == (0, True, "chat is Ready: RolledOut\n")


async def test_a_rollback_says_which_protection_it_keeps(api: ApiServer, llmservice: Command) -> None:
    uri = {"model": {"uri": "hf://org/model"}}
    api.objects[f"{SERVICES}/chat"]["spec"] |= uri | {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "k"}}}
    api.objects[f"{REVISIONS}/b"]["data"]["chosen"] = {"spec": uri}
    for more in (("--dry-run",), ()):
        said = (await llmservice.within("rollback", "chat", "--to", "2", *more)).out
        assert "made without spec.endpoint.apiKeySecretRef: it runs with today's" in said
    assert "made without" not in (await llmservice.within("rollback", "chat", "--to", "1", "--dry-run")).out
