"""`llmservice report`: what is in a bundle, what is not, and that no secret is."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.errors import BadInput, CliError
from llmservice_cli.report.bundle import archive, files, readme
from llmservice_cli.report.material import Entry, Gap
from llmservice_cli.report.reading import MOST_LOG_BYTES, MOST_PODS, log_of
from llmservice_cli.report.redaction import Cleaner, is_secret_key
from llmservice_cli.report.subjects import is_about
from llmservice_operator.build.meta import selector_text

from .cli_doctor_world import service
from .cli_world import PODS, SERVICES, ApiServer, Command, Json
from .test_cli_doctor import api as healthy

__all__ = ["healthy"]

HF, KEY, PASSWORD, LOGGED = "hf_AbCdEfGh1234567890", "sk-k3y-of-the-api", "s3cr3t-pass", "t0k3n-that-is-logged-9"
BEARER, AWS, SHORT, SIGNED = "b34r3r-of-somebody", "AKIAIOSFODNN7EXAMPLE", "abc12", "s1gn4tur3"
WORD = "opensesame"
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
        assert "Events: you have no right to it: list on events in team" in text
        assert "logs/chat-1/server.log: you have no right to it: get on pods/log" in text
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


async def test_of_the_operator(api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llmservice.folder)
    ran = await llmservice.within("report")
    (out,) = llmservice.folder.glob("operator-report-*.tar.gz")
    found = bundle_of(out)
    assert ran.code == 0
    assert f"objects/{SYSTEM}/configmap-llmservice-operator.yaml" in found
    assert "objects/lease-llmservice-operator.yaml" in found
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


async def test_a_log_of_long_lines_keeps_its_end() -> None:
    asked = []

    class Kube:
        async def log_tail(self, *_: Any, lines: int, max_bytes: int, **__: Any) -> str:
            asked.append(lines)
            return "x" * min(max_bytes, lines * 1000)

    found = await log_of(Kube(), "team", "chat-1", "server", 10_000, previous=False)  # type: ignore[arg-type]
    assert asked == [10_000, 2_500, 625] or asked[-1] * 1000 < MOST_LOG_BYTES
    assert len(found) < MOST_LOG_BYTES


HIDDEN = {
    "a variable": {"env": [{"name": "MY_TOKEN", "value": HF}]},
    "a short one": {"env": [{"name": "DB_PASSWORD", "value": SHORT}]},
    "an option's next word": {"args": ["--api-key", KEY]},
    "an option's value": {"args": [f"--ssl-private-key={KEY}"]},
    "a key": {"apiKey": KEY},
    "a key with a value of no form": {"clientSecret": WORD},
    "a key with a short value": {"clientSecret": SHORT},
    "an option with one": {"args": ["--api-key", WORD, "--port", "1"]},
    "a URL": {"uri": f"https://me:{PASSWORD}@x/y"},
    "a user without a password": {"uri": f"https://{LOGGED}@x/y"},
    "a header": {"message": f"Authorization: Basic {'QWxhZGRpbjpvcGVuc2VzYW1l'}"},
    "a command in one text": {"command": f"serve --api-key {KEY} --port 1"},
    "a command with =": {"command": f"serve --api-key={KEY} --port 1"},
    "JSON in a text": {"text": f'{{"client_secret": "{LOGGED}"}}'},
    "escaped JSON": {"text": f'"{{\\"client_secret\\": \\"{LOGGED}\\"}}"'},
    "Python's form": {"text": f"Namespace(api_key=['{KEY}'], hf_token='{HF}')"},
    "a key of AWS": {"text": f"id {AWS}"},
    "a signed URL": {"text": f"https://x/y?sig={SIGNED}&a=1"},
    "a JSON web token": {"text": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.SflKxwRJSMeKKF2QT4"},
    "a private key": {"text": f"-----BEGIN RSA PRIVATE KEY-----\n{LOGGED}\n-----END RSA PRIVATE KEY-----"},
    "one that is cut": {"text": f"-----BEGIN PRIVATE KEY-----\n{LOGGED}\n"},
    "a name of a key": {f"https://me:{PASSWORD}@x": 1},
}
OF_CASE = (*SECRETS, SHORT, WORD, "QWxhZGRpbjpvcGVuc2VzYW1l", "SflKxwRJSMeKKF2QT4")


@pytest.mark.parametrize("found", HIDDEN.values(), ids=HIDDEN)
def test_a_secret_is_hidden(found: Json) -> None:
    cleaned = yaml.safe_dump(Cleaner([found]).object(found))
    assert "***" in cleaned
    assert not [secret for secret in OF_CASE if secret in cleaned]


PLACES: dict[str, Json] = {
    "a variable": {"env": [{"name": "MY_TOKEN", "value": WORD}]},
    "an option": {"args": ["--api-key", WORD]},
    "an option with =": {"args": [f"--api-key={WORD}"]},
    "a key": {"apiKey": WORD},
}


@pytest.mark.parametrize("found", PLACES.values(), ids=PLACES)
def test_what_is_a_secret_in_an_object_is_hidden_in_texts(found: Json) -> None:
    assert Cleaner([found]).text(f"it was {WORD} again") == "it was *** again"


KEPT: dict[str, Json] = {
    "references": {
        "hfTokenSecretRef": {"name": "hub", "key": "token"},
        "secretName": "tls",
        "secretKeyRef": {"key": "k"},
    },
    "flags": {"automountServiceAccountToken": False, "args": ["--max-num-batched-tokens", "2048", "--tokenizer", "x"]},
    "figures": {"text": "12.3 tokens/s, KV cache tokens: 123456789012"},
    "images": {"image": "registry.example.com:5000/vllm@sha256:" + "a1" * 32},
    "metrics": {"text": 'vllm:prompt_tokens_total{model_name="chat"} 12345.0'},
    "an address": {"uri": "https://example.com:8080/v1?page=2"},
}


@pytest.mark.parametrize("found", KEPT.values(), ids=KEPT)
def test_what_is_no_secret_stays(found: Json) -> None:
    assert Cleaner([found]).object(found) == found


@pytest.mark.parametrize(
    ("name", "is_secret"), [("HF_TOKEN", True), ("awsSecretAccessKey", True), ("key", False), ("tokens", False)]
)
def test_names_of_secrets(name: str, is_secret: bool) -> None:
    assert is_secret_key(name) is is_secret


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=12), below, max_size=4),
    max_leaves=20,
)


@given(JSONS, st.text(max_size=200))
def test_anything_can_be_cleaned_and_written(found: Any, text: str) -> None:
    gaps: list[Gap] = []
    made = files([Entry("o.yaml", "o", {"kind": "X", "it": found}), Entry("../t", "t", text)], gaps)
    assert all(".." not in file.path and b"\x1b" not in file.content for file in made)


@given(st.from_regex(r"[A-Za-z0-9]{12,40}[0-9]", fullmatch=True), st.text(max_size=50), st.text(max_size=50))
def test_a_variable_is_hidden_wherever_it_is(secret: str, before: str, after: str) -> None:
    cleaner = Cleaner([{"env": [{"name": "X_TOKEN", "value": secret}]}])
    assert secret not in cleaner.text(f"{before}{secret}{after}")


def test_long_lines_of_nothing_take_no_time() -> None:
    """A backtracking pattern would take minutes for each of these."""
    for part in ("-", "--token", "eyJ", "://", "bearer ", "--a-token ", "token=", "-----BEGIN PRIVATE KEY-----"):
        line = part * (16_000 // len(part))
        Cleaner([{"args": [line]}], [line]).text(f"{line}\n" * 20)


def test_a_bundle_is_bounded_and_says_what_was_cut() -> None:
    gaps: list[Gap] = []
    found = files([Entry("a", "first", "x" * 1000), Entry("b", "second", "y\n" * 100_000)], gaps, most=65 * 1024)
    assert sum(len(file.content) for file in found) <= 1024
    assert [gap.what for gap in gaps] == ["b"]
    assert found[-1].content.endswith(b"y\n"), "the end of a log matters most"
    assert "b: cut to" in readme("t", found, gaps)


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
