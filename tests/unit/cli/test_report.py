"""`llmservice report`: what is in a bundle, what is not, and that no secret is."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.constants import selector_text
from llmservice_cli.errors import BadInput, CliError
from llmservice_cli.report import collecting
from llmservice_cli.report.collecting import (
    AT_A_TIME,
    MOST_LOG_BYTES,
    MOST_LOOKED_AT,
    MOST_PODS,
    Entry,
    Gap,
    Material,
    Planned,
    archive,
    events,
    files,
    is_about,
    log_of,
    read_all,
    readme,
)
from llmservice_cli.report.redaction import Cleaner

from tests.unit.api_server import ApiServer
from tests.unit.cli.doctor_world import deployment, service, waiting
from tests.unit.cli.test_doctor import api as healthy
from tests.unit.cli_world import PODS, SERVICES, Command, Json

__all__ = ["healthy"]

HF, KEY, PASSWORD, LOGGED = "hf_AbCdEfGh1234567890", "sk-k3y-of-the-api", "s3cr3t-pass", "t0k3n-that-is-logged-9"
BEARER, AWS, SHORT, SIGNED = "b34r3r-of-somebody", "AKIAIOSFODNN7EXAMPLE", "abc12", "s1gn4tur3"
SECRETS = (HF, KEY, PASSWORD, LOGGED, BEARER, AWS, SIGNED)
LABEL, _, _ = selector_text("chat").partition("=")
SYSTEM = "llmservice-system"


def pod(name: str = "chat-1", restarts: int = 1) -> Json:
    env = [
        {"name": "HF_TOKEN", "value": HF},
        {"name": "PIN_SECRET", "value": SHORT},
        {"name": "MIRROR", "value": f"https://me:{PASSWORD}@mirror.example.com/x"},
        {"name": "AWS", "value": AWS},
        {"name": "PLAIN", "value": "as it is"},
    ]
    container = {"name": "server", "args": ["--model", "m", "--api-key", KEY, f"--hf-token={HF}"], "env": env}
    last = {"terminated": {"exitCode": 1, "message": f"died with {KEY}"}} if restarts else {}
    status = {"name": "server", "state": {"running": {}}, "lastState": last, "restartCount": restarts}
    metadata = {"name": name, "namespace": "team", "labels": {LABEL: "chat"}, "managedFields": [{"manager": "x"}]}
    spec = {"nodeName": "a", "containers": [container]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "containerStatuses": [status]}}


LOG = f"""\
starting with api_key: ['{KEY}']
Authorization: Bearer {BEARER}
loading, token={LOGGED}
again {LOGGED} and {SHORT}
GET https://bucket.example.com/x?X-Amz-Signature={SIGNED}&b=1
Avg prompt throughput: 12.3 tokens/s
"""


@pytest.fixture
def api(healthy: ApiServer) -> ApiServer:
    """A healthy cluster in which `chat` has a pod and an Event."""
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": f'{{"x": "{KEY}"}}'}
    found = service(runtime={"extraArgs": ["--api-key", KEY]})
    found["metadata"]["annotations"] = annotations
    event = {
        "metadata": {"name": "e", "namespace": "team"},
        "involvedObject": {"kind": "Pod", "name": "chat-1"},
        "type": "Warning",
        "reason": "BackOff",
        "message": f"failed with {HF}",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    other = {
        **event,
        "metadata": {"name": "o", "namespace": "team"},
        "involvedObject": {"kind": "Pod", "name": "other"},
    }
    healthy.objects |= {
        f"{SERVICES}/chat": found,
        f"{PODS}/chat-1": pod(),
        "/api/v1/namespaces/team/events/e": event,
        "/api/v1/namespaces/team/events/o": other,
    }
    healthy.answers |= {
        f"{PODS}/chat-1/log": LOG,
        f"{PODS}/chat-1:8000/proxy/metrics": "vllm:num_requests_running 1\n",
        f"{PODS}/chat-1:8081/proxy/metrics": "supervisor 1\n",
        f"{PODS}/chat-1:8081/proxy/state": '{"phase": "Ready"}',
    }
    return healthy


def bundle_of(path: Path) -> dict[str, str]:
    """Texts by their paths in the bundle's one folder."""
    with tarfile.open(path) as bundle:
        members = bundle.getmembers()
        assert len({member.name.split("/")[0] for member in members}) == 1
        return {member.name.partition("/")[2]: _text(bundle, member) for member in members}


def _text(bundle: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    found = bundle.extractfile(member)
    assert found is not None
    return found.read().decode()


async def test_a_bundle_has_all_of_a_service_and_no_secret(api: ApiServer, llmservice: Command) -> None:
    out = llmservice.folder / "r.tar.gz"
    ran = await llmservice.within("report", "chat", "--out", str(out))
    assert ran.code == 0, ran.err
    found = bundle_of(out)
    assert {
        "README.md",
        "objects/llmservice-chat.yaml",
        "objects/pod-chat-1.yaml",
        "events.txt",
        "logs/chat-1/server.log",
        "logs/chat-1/server.previous.log",
        "pages/chat-1.metrics.txt",
        "pages/chat-1.state.json",
        "doctor.yaml",
        "versions.yaml",
        "nodes.yaml",
    } <= {*found}
    for path, text in found.items():
        assert not [secret for secret in (*SECRETS, "managedFields", "last-applied") if secret in text], path
    assert SHORT not in found["objects/pod-chat-1.yaml"], "a short one is hidden in its place"
    log = found["logs/chat-1/server.log"]
    assert "Avg prompt throughput: 12.3 tokens/s" in log
    assert "again *** and" in log, "what is a secret in one place is hidden in others"
    assert "BackOff" in found["events.txt"]
    assert "other" not in found["events.txt"]
    assert "value: as it is" in found["objects/pod-chat-1.yaml"]
    assert all(path in found["README.md"] for path in found if path != "README.md")
    assert oct(out.stat().st_mode & 0o777) == "0o600"


async def test_claims_of_devices_are_in_it_the_users_too_and_no_others(api: ApiServer, llmservice: Command) -> None:
    claimed, found = pod(), service(accelerator={"claim": {"deviceClass": "gpus"}})
    claimed["spec"]["resourceClaims"] = [
        {"name": "gpus", "resourceClaimTemplateName": "chat-1a2b"},
        {"name": "nics", "resourceClaimTemplateName": "theirs"},
    ]
    claimed["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": "chat-1-gpus-x7"}]
    api.objects |= {f"{SERVICES}/chat": found, f"{PODS}/chat-1": claimed}
    for plural, names in {
        "resourceclaimtemplates": ("chat-1a2b", "theirs", "of-others"),
        "resourceclaims": ("chat-1-gpus-x7", "others-claim"),
    }.items():
        items = [{"metadata": {"name": name, "namespace": "team"}} for name in names]
        api.answers[f"/apis/resource.k8s.io/v1/namespaces/team/{plural}"] = {"items": items}
    out = llmservice.folder / "r.tar.gz"
    assert (await llmservice.within("report", "chat", "--out", str(out))).code == 0
    assert {path for path in bundle_of(out) if path.startswith("objects/resourceclaim")} == {
        "objects/resourceclaimtemplate-chat-1a2b.yaml",
        "objects/resourceclaimtemplate-theirs.yaml",
        "objects/resourceclaim-chat-1-gpus-x7.yaml",
    }


async def test_secrets_are_never_asked_for_and_nothing_is_changed(api: ApiServer, llmservice: Command) -> None:
    await llmservice.within("report", "chat", "--out", str(llmservice.folder / "r.tar.gz"))
    assert not [path for _, path, *_ in api.requests if "/secrets" in path]
    assert {path for method, path, *_ in api.requests if method != "GET"} == {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    }


async def test_what_could_not_be_read_is_named_with_the_right(api: ApiServer, llmservice: Command) -> None:
    api.refused = {"events": 403}
    api.answers |= {f"{PODS}/chat-1/log": 403, f"{PODS}/chat-1:8000/proxy/metrics": (500, f"no {HF}")}
    out = llmservice.folder / "r.tar.gz"
    ran = await llmservice.within("report", "chat", "--out", str(out))
    assert ran.code == 0
    missing = bundle_of(out)["README.md"].partition("## What is missing")[2]
    for text in (missing, ran.out):
        assert "Events: needs list events in namespace team" in text
        assert "logs/chat-1/server.log: needs get pods/log in namespace team" in text
        assert "pages/chat-1.metrics.txt: no ***" in text


async def test_a_dry_run_lists_and_writes_nothing(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(llmservice.folder)
    before = {*llmservice.folder.iterdir()}
    ran = await llmservice.within("report", "chat", "--dry-run")
    assert (ran.code, {*llmservice.folder.iterdir()}) == (0, before)
    assert "logs/chat-1/server.previous.log" in ran.out
    assert not [path for _, path, *_ in api.requests if path.endswith("/log") or "/proxy/" in path]


async def test_what_is_in_it_for_programs(api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llmservice.folder)
    planned = (await llmservice.within("report", "chat", "--dry-run", "-o", "json")).json
    written = (await llmservice.within("report", "chat", "-o", "json")).json
    assert (planned["version"], planned["file"]) == (1, None)
    assert written["file"] in [path.name for path in llmservice.folder.iterdir()]
    paths = {one["path"] for one in planned["files"]}
    assert "objects/llmservice-chat.yaml" in paths <= {one["path"] for one in written["files"]}
    assert all(one["bytes"] > 0 for one in written["files"])


@pytest.mark.parametrize("lines", ["0", "100001", "many"])
def test_how_many_lines_is_bounded(lines: str, llmservice: Command) -> None:
    ran = llmservice("report", "chat", "--lines", lines)
    assert (ran.code, "invalid value for '--lines'" in ran.err) == (2, True)


async def test_of_the_operator(api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llmservice.folder)
    ran = await llmservice.within("report")
    (out,) = llmservice.folder.glob("operator-report-*.tar.gz")
    found = bundle_of(out)
    assert ran.code == 0
    assert f"objects/{SYSTEM}/configmap-llmservice-operator.yaml" in found
    assert f"objects/{SYSTEM}/lease-llmservice-operator.yaml" in found
    assert "crd-version" in found["objects/customresourcedefinition-llmservices.llmservice.dev.yaml"]


async def test_a_file_is_not_overwritten(api: ApiServer, llmservice: Command) -> None:
    out = llmservice.text("r.tar.gz", "mine")
    with pytest.raises(BadInput, match="exists already"):
        await llmservice.within("report", "chat", "--out", out)
    assert api.requests == []


@pytest.mark.parametrize(("words", "says"), [(("absent",), "choose one of: chat"), (("chat",), "cannot be written")])
async def test_errors(words: tuple[str, ...], says: str, api: ApiServer, llmservice: Command) -> None:
    with pytest.raises(CliError) as error:
        await llmservice.within("report", *words, "--out", str(llmservice.folder / "no" / "r.tar.gz"))
    assert says in str(error.value)
    assert error.value.exit_code == 1


async def test_many_pods_are_bounded(api: ApiServer, llmservice: Command) -> None:
    api.objects |= {f"{PODS}/more-{index}": pod(f"more-{index}", 0) for index in range(MOST_PODS + 5)}
    ran = await llmservice.within("report", "chat", "--dry-run")
    assert ran.out.count("/server.log") == MOST_PODS
    assert ran.out.count(f"those of {MOST_PODS} pods are kept") == 6


@pytest.mark.parametrize(
    ("pages", "looked_at", "gaps"),
    [(1, 1, []), (10, 10, []), (11, 10, ["further events"])],
    ids=["a page", "as many as are looked at", "more"],
)
async def test_lists_of_a_large_namespace_are_bounded(pages: int, looked_at: int, gaps: list[str]) -> None:
    asked: list[int] = []

    class Kube:
        async def list_pages(self, *_: Any, **__: Any) -> AsyncIterator[Json]:
            for number in range(1, pages + 1):
                asked.append(number)
                more = {"continue": "next"} if number < pages else {}
                yield {"items": [{"metadata": {}}] * (MOST_LOOKED_AT // 10), "metadata": more}

    material = Material()
    await events(Kube(), material, "team", ())  # type: ignore[arg-type]
    assert len(asked) == looked_at
    assert [gap.what for gap in material.gaps] == gaps


async def test_a_log_of_long_lines_keeps_its_end() -> None:
    asked = []

    class Kube:
        async def log_tail(self, *_: Any, lines: int, max_bytes: int, **__: Any) -> str:
            asked.append(lines)
            return "x" * min(max_bytes, lines * 1000)

    found = await log_of(Kube(), "team", "chat-1", "server", 10_000, previous=False)  # type: ignore[arg-type]
    assert asked == [10_000, 2_500, 625] or asked[-1] * 1000 < MOST_LOG_BYTES
    assert len(found) < MOST_LOG_BYTES


def test_a_bundle_is_bounded_and_says_what_was_cut() -> None:
    gaps: list[Gap] = []
    found = files([Entry("a", "first", "x" * 1000), Entry("b", "second", "y\n" * 100_000)], gaps, most=65 * 1024)
    assert sum(len(file.content) for file in found) <= 1024
    assert [gap.what for gap in gaps] == ["b"]
    assert found[-1].content.endswith(b"y\n"), "the end of a log matters most"
    assert "b: cut to" in readme("t", found, gaps)


def test_what_has_no_room_is_not_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[str] = []
    monkeypatch.setattr(Cleaner, "text", lambda _, text: cleaned.append(text) or text)  # type: ignore[func-returns-value]
    files([Entry("a", "first", "x" * 2000), Entry("b", "second", "later")], [], most=65 * 1024)
    assert "later" not in cleaned


async def test_a_long_page_of_a_pod_is_left_out(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MOST_PAGE_BYTES", 1000)
    api.answers[f"{PODS}/chat-1:8000/proxy/metrics"] = "x 1\n" * 1000
    out = llmservice.folder / "r.tar.gz"
    assert (await llmservice.within("report", "chat", "--out", str(out))).code == 0
    found = bundle_of(out)
    assert "pages/chat-1.metrics.txt" not in found
    assert "- pages/chat-1.metrics.txt: " in found["README.md"]
    assert "pages/chat-1.state.json" in found


async def test_no_more_is_read_than_a_bundle_has_room_for() -> None:
    asked: list[int] = []

    def planned(index: int) -> Planned:
        async def read() -> str:
            asked.append(index)
            return "x" * 100

        return Planned("team", f"pages/{index}", "a page", read)

    material = Material(planned=[planned(index) for index in range(50)])
    found = await read_all(material, most=1000)
    assert len(asked) == len(found) < 10 + AT_A_TIME
    assert {gap.why for gap in material.gaps} == {"not read: the bundle has no room for more"}
    assert len(material.gaps) + len(found) == 50


async def test_operators_of_several_namespaces_have_files_of_their_own(api: ApiServer, llmservice: Command) -> None:
    labels = {"app.kubernetes.io/name": "llmservice-operator"}
    for place in ("one", "two"):
        placed = {"name": "op", "namespace": place, "labels": labels}
        api.objects |= {
            f"/apis/apps/v1/namespaces/{place}/deployments/op": {**deployment(), "metadata": placed},
            f"/api/v1/namespaces/{place}/pods/op": {**pod("op", 0), "metadata": placed},
        }
    ran = await llmservice.within("report", "--dry-run")
    paths = [line.split()[0] for line in ran.out.splitlines()[2:] if line and not line.startswith(" ")]
    assert sorted({*paths}) == sorted(paths), "no path twice"
    kept = ("one/events.txt", "logs/one/op/server.log", "pages/two/op.metrics.txt")
    assert {*kept} <= {*paths}


async def test_the_web_page_is_in_it(api: ApiServer, llmservice: Command) -> None:
    metadata = {"name": "web", "namespace": SYSTEM, "labels": {"app.kubernetes.io/name": "llmservice-operator-ui"}}
    api.objects[f"/api/v1/namespaces/{SYSTEM}/pods/web"] = {**pod("web", 0), "metadata": metadata}
    ran = await llmservice.within("report", "--dry-run")
    assert f"logs/{SYSTEM}/web/server.log" in ran.out
    assert f"pages/{SYSTEM}/web" not in ran.out, "it has no metrics"


async def test_other_services_are_not_named(api: ApiServer, llmservice: Command) -> None:
    for namespace in ("team", "elsewhere"):
        other = service("False", "DoesNotFit")
        other["metadata"] = {"name": "hidden", "namespace": namespace}
        api.objects[f"/apis/llmservice.dev/v1alpha1/namespaces/{namespace}/llmservices/hidden"] = other
    failing = {**waiting("ImagePullBackOff"), "metadata": {"name": "hidden-1", "namespace": "team"}}
    failing["metadata"]["labels"] = {LABEL: "hidden"}
    api.objects[f"{PODS}/hidden-1"] = failing
    out = llmservice.folder / "r.tar.gz"
    await llmservice.within("report", "chat", "--out", str(out))
    found = bundle_of(out)
    assert "1 of 1 LLMServices are Ready" in found["doctor.yaml"]
    assert not [path for path, text in found.items() if "hidden" in text]


def test_an_archive_has_files_of_one_folder_for_the_user_alone() -> None:
    found = files([Entry("a/b.txt", "it", "text")], [])
    with tarfile.open(fileobj=io.BytesIO(archive("folder", found, 1.0))) as bundle:
        (member,) = bundle.getmembers()
        assert (member.name, member.mode, member.isfile()) == ("folder/a/b.txt", 0o600, True)


LINES = {
    "its own": ('{"message": "x", "namespace": "team", "name": "chat"}', True),
    "with the kubelet's time": ('2026-01-01T00:00:00Z {"message": "x", "namespace": "team", "name": "chat"}', True),
    "of another namespace": ('{"message": "team/chat", "namespace": "other", "name": "chat"}', False),
    "of another name": ('{"message": "x", "namespace": "team", "name": "chat-2"}', False),
    "for the console": ("INFO reconcile team/chat: RolledOut", True),
    "of nothing": ('{"message": "watching"}', False),
    "not JSON": ("{{{{", False),
}


@pytest.mark.parametrize(("line", "is_its"), LINES.values(), ids=LINES)
def test_lines_about_a_service(line: str, is_its: bool) -> None:
    assert is_about(line, "team", "chat") is is_its
