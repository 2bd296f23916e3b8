"""Where models come from: a hub, a bucket, an image; one download for all replicas; and why there was none."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from llmservice_runtime.contract import (
    FETCH_CONTAINER,
    FETCH_DIR,
    FETCH_SOCKET,
    MODELS_DIR,
    SERVER_CONTAINER,
    STATE_PORT,
    Failure,
)
from llmservice_runtime.fetching.fetch_protocol import read_document

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from localcluster.tinymodel.pairs import PAIRS
from tests.e2e.conftest import make_namespace
from tests.support import rolling
from tests.support.buckets import google_key
from tests.support.cloud_stores import ACCOUNT, ACCOUNT_KEY, AzureStore, GoogleStore, azure_store, google_store
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.measured import Record
from tests.support.models import claim_folder
from tests.support.object_store import ROOT, ObjectStore, object_store
from tests.support.oci import import_folder
from tests.support.services import llmservice, merge
from tests.support.serving import Metrics, Server, serving

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-sources"
# The node's own address on the pods' network: what listens there is reached from pods.
BRIDGE = "10.244.0.1"
TOKEN = "hf_tokenOfTheTeamThatNobodyMayRead"
IMAGE = "registry.local/tiny-chat-model:1"
SHARED, FULL, CUT, VERIFIED, KILLED = CLAIMS = ("shared-cache", "full-disk", "cut", "verified", "killed-cache")
QUESTION, ANSWER = PAIRS[0]
TOLD_WITHIN = 300
"""Eight pods import what they need at once, on a machine that its host may give half of its processors."""


@dataclass
class Sources:
    """The namespace, and the servers that its pods fetch from."""

    cluster: Cluster
    hub: Hub
    store: ObjectStore
    folders: Path

    def from_hub(self, uri: str, *, secret: str | None = "hub-token", cache: str | None = None) -> JSON:
        """The parts of a spec that make it a service of the hub."""
        model: JSON = {"uri": uri}
        if secret:
            model["hfTokenSecretRef"] = {"name": secret, "key": "token"}
        if cache:
            model["cache"] = {"claimName": cache}
        return {"model": model, "runtime": {"env": [{"name": "HF_ENDPOINT", "value": self.hub.url}]}}

    def from_store(self, uri: str, secret: str = "bucket-keys") -> JSON:
        """The parts of a spec that make it a service of the object store."""
        keys = {"name": secret}
        return {"model": {"uri": uri, "s3": {"endpoint": self.store.url, "credentialsSecretRef": keys}}}

    def claim(self, name: str) -> Path:
        """A claim that pods may write to; its folder on this machine."""
        folder = self.folders / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        claim_folder(self.cluster, NAMESPACE, name, folder, access="ReadWriteMany")
        return folder


@pytest.fixture(scope="module")
def sources(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    model = cached_model(print)
    whole = Repo.of_folder(model)
    cut = {**whole.files, "model.safetensors": whole.files["model.safetensors"][:-1000]}
    repos = {
        "team/tiny": Repo(dict(whole.files), gated=True),
        "team/open": Repo(dict(whole.files)),
        "team/cut": Repo(cut),
    }
    hub = Hub(repos, {TOKEN: {"team/tiny"}})
    folders = ClusterPaths.of_this_clone().models / "sources"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folders, ignore_errors=True)
        stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
        store = stack.enter_context(object_store(tmp_path_factory.mktemp("s3"), BRIDGE))
        store.make_bucket("models")
        store.put_folder("models", "team/tiny", model)
        make_namespace(cluster, NAMESPACE)
        stack.callback(cluster.kubectl, "delete", "namespace", NAMESPACE, "--wait=false")
        volumes = [f"{NAMESPACE}-{claim}" for claim in CLAIMS]
        stack.callback(cluster.kubectl, "delete", "pv", *volumes, "--ignore-not-found", "--wait=false")
        secrets: Mapping[str, Mapping[str, str]] = {
            "hub-token": {"token": TOKEN},
            "wrong-token": {"token": "hf_revokedLongAgo"},
            "bucket-keys": {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": ROOT.secret_key},
            "wrong-keys": {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": "of/somebody+else"},
        }
        for name, values in secrets.items():
            cluster.apply(secret(name, values), NAMESPACE)
        yield Sources(cluster, hub, store, folders)


def secret(name: str, values: Mapping[str, str]) -> JSON:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


@pytest.mark.full
def test_replicas_fetch_once_and_a_kill_costs_nothing(sources: Sources, record: Record) -> None:
    """From a gated repository, into a claim that both share; whoever downloads is killed in the middle."""
    cluster, hub = sources.cluster, sources.hub
    cache = sources.claim(SHARED)
    hub.bytes_per_second = 100_000  # most of a minute: the status tells how far it is every 15 seconds at most
    # A look at the model beforehand would be among the requests that are counted.
    spec = sources.from_hub("hf://team/tiny", cache=SHARED) | {"scaling": {"replicas": 2}, "fitPolicy": "Ignore"}
    cluster.apply(llmservice("hub", **spec), NAMESPACE)
    eventually("a part of the weights", lambda: partial_bytes(cache) > 500_000, 180)
    seen = eventually("progress in the status", lambda: told_progress(cluster, "hub"), 30)
    assert (seen["phase"], seen["artifact"]) == ("Fetching", "model")
    os.kill(downloading_process(), signal.SIGKILL)
    hub.bytes_per_second = None
    with serving(cluster, NAMESPACE, "hub", **spec) as server:
        starts = [asked.start for asked in hub.contents()]
        assert len(starts) == 2, "the weights are asked for once, and once more from where the kill left them"
        assert starts[0] == 0 < starts[1]
        assert len(server.pods()) == 2
        assert server.say(QUESTION) == ANSWER
        record(weights_asked_from=starts, told_percent=seen["percent"])
        assert_said_nowhere(cluster, TOKEN)
        assert_no_server_has(cluster, TOKEN)


@pytest.mark.full
def test_a_fetch_container_that_is_killed_goes_on_and_restarts_no_server(sources: Sources, record: Record) -> None:
    """As the kernel ends it for memory: the kubelet starts it again, and the server asks it again."""
    cluster, hub = sources.cluster, sources.hub
    cache = sources.claim(KILLED)
    hub.asked.clear()
    hub.bytes_per_second = 100_000
    spec = sources.from_hub("hf://team/open", secret=None, cache=KILLED) | {"fitPolicy": "Ignore"}
    cluster.apply(llmservice("killed", **spec), NAMESPACE)
    try:
        size = len(hub.repos["team/open"].files["model.safetensors"])
        eventually("half of the weights", lambda: partial_bytes(cache) > size // 2, 180)
        os.kill(fetching_container(downloading_process()), signal.SIGKILL)
    finally:
        hub.bytes_per_second = None
    with serving(cluster, NAMESPACE, "killed", **spec) as server:
        (pod,) = server.pods()
        fetch = next(c for c in pod["status"]["initContainerStatuses"] if c["name"] == FETCH_CONTAINER)
        assert fetch["restartCount"] == 1
        assert rolling.restarts(pod) == 0, "the server went on waiting"
        starts = [asked.start for asked in hub.contents()]
        assert starts[0] == 0
        assert max(starts) > 0, "it went on where the kill left it"
        log = cluster.kubectl("logs", pod["metadata"]["name"], "-n", NAMESPACE, "-c", SERVER_CONTAINER)
        assert "resuming in" in log
        assert server.say(QUESTION) == ANSWER
        record(weights_asked_from=starts)


@pytest.mark.full
def test_code_in_the_server_can_neither_have_other_things_fetched_nor_write_the_cache(sources: Sources) -> None:
    """It has the socket and no credentials: what it asks for beside the model is refused."""
    with serving(sources.cluster, NAMESPACE, "asked", **sources.from_store("s3://models/team/tiny")) as server:
        (pod,) = server.pods()
        name = pod["metadata"]["name"]

        def in_server(script: str, *arguments: str) -> str:
            command = ("exec", "-n", NAMESPACE, name, "-c", SERVER_CONTAINER, "--", "python3", "-c", script, *arguments)
            return sources.cluster.kubectl(*command)

        for wanted in ("model=s3://models/other", "x=s3://models/team/tiny", "model=s3://secrets/all"):
            failure = read_document(in_server(ASK, FETCH_SOCKET, json.dumps({"fetch": [wanted]})))
            assert isinstance(failure, Failure)
            assert failure.reason == "FetchContainerFailed"
            assert "not started to fetch" in failure.message
        for folder in (MODELS_DIR, FETCH_DIR):
            assert "Read-only file system" in in_server(WRITE, folder)
        assert server.say(QUESTION) == ANSWER


ASK = """
import socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.connect(sys.argv[1])
asking.sendall(sys.argv[2].encode() + b"\\n")
print(b"".join(iter(lambda: asking.recv(65536), b"")).decode())
"""
WRITE = """
import pathlib, sys
try:
    pathlib.Path(sys.argv[1], "planted").write_text("x")
except OSError as error:
    print(error)
"""


@pytest.mark.full
def test_what_another_writer_did_to_a_claim_is_not_served(sources: Sources) -> None:
    """A damaged file is fetched again where hashes are verified; a file that nobody listed is not part of the model."""
    hub, cache = sources.hub, sources.claim(VERIFIED)
    spec = sources.from_hub("hf://team/open", secret=None, cache=VERIFIED)
    with serving(sources.cluster, NAMESPACE, "claimed", **spec) as server:
        assert server.say(QUESTION) == ANSWER
    (snapshot,) = (cache / "hub/models--team--open/snapshots").iterdir()
    whole = (snapshot / "model.safetensors").read_bytes()
    (snapshot / "model.safetensors").resolve().write_bytes(whole[:-1000] + bytes(1000))
    (snapshot / "model-2.safetensors").write_bytes(b"no weights")
    hub.asked.clear()
    spec = merge(spec, {"model": {"cache": {"verify": "Hash"}}})
    with serving(sources.cluster, NAMESPACE, "claimed", **spec) as server:
        assert server.say(QUESTION) == ANSWER
        assert (snapshot / "model.safetensors").read_bytes() == whole
        assert hub.contents()[-1].start == 0, "the damaged file came again, and the Job read the headers"
        (pod,) = server.pods()
        state = f"http://{pod['status']['podIP']}:{STATE_PORT}/metrics"
        room = Metrics(httpx.get(state, timeout=10, trust_env=False).text).by_label(
            "llmservice_server_cache_bytes", "state"
        )
        assert room["used"] >= len(whole)
        assert room["available"] > 0


@pytest.mark.full
def test_a_bucket_with_credentials(sources: Sources) -> None:
    with serving(sources.cluster, NAMESPACE, "bucket", **sources.from_store("s3://models/team/tiny")) as server:
        assert server.say(QUESTION) == ANSWER
        for value in (ROOT.secret_key, ROOT.access_key):
            assert_said_nowhere(sources.cluster, value)
            assert_no_server_has(sources.cluster, value)


@pytest.mark.full
def test_a_bucket_of_google_with_a_service_account(sources: Sources) -> None:
    """Its key is a variable of the process that fetches, and appears nowhere else."""
    with (
        google_store(BRIDGE) as store,
        serving_from(
            sources,
            "google",
            store,
            {"key.json": google_key()},
            uri="gs://models/team/tiny",
            gcs={"endpoint": store.url, "credentialsSecretRef": {"name": "google-keys", "key": "key.json"}},
        ) as server,
    ):
        assert server.say(QUESTION) == ANSWER
        key = cluster_secret(sources.cluster, "google-keys", "key.json")
        assert_said_nowhere(sources.cluster, json.loads(key)["private_key"].splitlines()[1])


@pytest.mark.full
def test_a_container_of_azure_with_a_key(sources: Sources, tmp_path: Path) -> None:
    with (
        azure_store(tmp_path, BRIDGE) as store,
        serving_from(
            sources,
            "azure",
            store,
            {"AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY},
            uri="az://models/team/tiny",
            azure={"account": ACCOUNT, "endpoint": store.endpoint, "credentialsSecretRef": {"name": "azure-keys"}},
        ) as server,
    ):
        assert server.say(QUESTION) == ANSWER
        assert_said_nowhere(sources.cluster, ACCOUNT_KEY)


@contextmanager
def serving_from(
    sources: Sources, name: str, store: GoogleStore | AzureStore, keys: Mapping[str, str], **model: Any
) -> Iterator[Server]:
    """A service of a bucket that holds the small model, with a Secret NAME-keys."""
    store.make_bucket("models")
    for path in sorted(cached_model(print).iterdir()):
        if path.is_file():
            store.put("models", f"team/tiny/{path.name}", path.read_bytes())
    sources.cluster.apply(secret(f"{name}-keys", keys), NAMESPACE)
    with serving(sources.cluster, NAMESPACE, name, model=model) as server:
        yield server


def cluster_secret(cluster: Cluster, name: str, key: str) -> str:
    data = json.loads(cluster.kubectl("get", "secret", name, "-n", NAMESPACE, "-o", "json"))["data"]
    return base64.b64decode(data[key]).decode()


@pytest.mark.full
def test_an_image_as_a_volume(sources: Sources) -> None:
    """Nothing is copied: the kubelet mounts the image, and its model is read where it lies."""
    import_folder(sources.cluster.paths, IMAGE, cached_model(print), "models/tiny")
    model = {"uri": f"image://{IMAGE}#models/tiny"}
    with serving(sources.cluster, NAMESPACE, "image", model=model) as server:
        assert server.say(QUESTION) == ANSWER
        (pod,) = server.pods()
        volumes = [volume["image"]["reference"] for volume in pod["spec"]["volumes"] if "image" in volume]
        assert volumes == [IMAGE]


@dataclass(frozen=True)
class Refused:
    """A model that cannot be had, and what the status must say of it."""

    reason: str
    remedy: str
    words: str
    uri: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


REFUSED = {
    "no-such-model": Refused("ModelNotFound", "spec.model.uri", "team/none", "hf://team/none"),
    "no-such-revision": Refused("ModelRevisionNotFound", "spec.model.uri", "v9", "hf://team/open@v9"),
    "gated": Refused("ModelAccessDenied", "hfTokenSecretRef", "gated", "hf://team/tiny", {"secret": None}),
    "a-wrong-token": Refused(
        "ModelTokenRefused", "hfTokenSecretRef", "does not accept", "hf://team/tiny", {"secret": "wrong-token"}
    ),
    "wrong-keys": Refused(
        "ModelTokenRefused", "credentialsSecretRef", "SignatureDoesNotMatch", "s3://models/team/tiny",
        {"secret": "wrong-keys"},
    ),
    "a-full-disk": Refused(
        "StorageFull", "spec.model.cache.size", "are still to be fetched", "hf://team/open",
        {"secret": None, "cache": FULL},
    ),
    "a-broken-shard": Refused(
        "ModelCorrupt", "where the uri points", "model.safetensors", "hf://team/cut", {"secret": None}
    ),
    "a-broken-copy": Refused("ModelCorrupt", "where the uri points", "model.safetensors", f"pvc://{CUT}/"),
}  # fmt: skip


# None of them gets as far as to need more.
SMALL = {"requests": {"cpu": "100m", "memory": "128Mi"}}


@pytest.fixture(scope="module")
def refused(sources: Sources) -> Iterator[None]:
    """All of them at once: none ever starts an engine."""
    disk = sources.claim(FULL)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", str(disk)], check=True)
    copy = sources.folders / CUT
    copy.mkdir(parents=True)
    for name, content in sources.hub.repos["team/cut"].files.items():
        (copy / name).write_bytes(content)
    claim_folder(sources.cluster, NAMESPACE, CUT, copy)
    for name, case in REFUSED.items():
        kind = case.uri.partition(":")[0]
        spec: JSON = {"model": {"uri": case.uri}}
        if kind == "hf":
            spec = sources.from_hub(case.uri, **case.options)
        elif kind == "s3":
            spec = sources.from_store(case.uri, **case.options)
        sources.cluster.apply(llmservice(name, **merge(spec, {"runtime": {"resources": SMALL}})), NAMESPACE)
    yield
    sources.cluster.kubectl("delete", "llms", *REFUSED, "-n", NAMESPACE, "--wait=false")
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("case", REFUSED)
def test_why_there_is_no_model(cluster: Cluster, refused: None, case: str) -> None:
    expected = REFUSED[case]

    def told() -> JSON | None:
        found: JSON | None = cluster.must_get("llmservices", NAMESPACE, case).get("status", {}).get("failure")
        return found

    failure = eventually("a failure in the status", told, TOLD_WITHIN)
    assert failure["reason"] == expected.reason, failure
    assert expected.words in failure["message"], failure
    assert expected.remedy in failure["remedy"], failure
    ready = cluster.condition(NAMESPACE, case, "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("False", expected.reason)


def test_credentials_are_said_nowhere(cluster: Cluster, refused: None) -> None:
    for value in (TOKEN, "hf_revokedLongAgo", ROOT.secret_key, ROOT.access_key, "of/somebody+else"):
        assert_said_nowhere(cluster, value)
        assert_no_server_has(cluster, value)


def assert_said_nowhere(cluster: Cluster, value: str) -> None:
    """Not in an argument, a status, an event or a log; the Secret itself and the process's environment hold it."""
    kinds = "llmservices,deployments,replicasets,pods,controllerrevisions,events,configmaps"
    said = {"objects": cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "yaml", "--show-managed-fields")}
    for pod in cluster.list("pods", NAMESPACE):
        name = pod["metadata"]["name"]
        for more in ((), ("--previous",)):
            log = cluster.kubectl("logs", name, "-n", NAMESPACE, "--all-containers", *more, expect=None)
            said[f"log of {name} {more}"] = log
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said[str(command)] = command.read_text(errors="replace")
        except OSError:
            continue  # a process that ended while we looked
    encoded = base64.b64encode(value.encode()).decode()
    found = [place for place, text in said.items() if value in text or encoded in text]
    assert found == []


def assert_no_server_has(cluster: Cluster, value: str) -> None:
    """No process of a server container has it, neither as a variable nor by the pod's own description."""
    for pod in cluster.list("pods", NAMESPACE):
        for container in (one for one in pod["spec"]["containers"] if one["name"] == SERVER_CONTAINER):
            taken = [one["name"] for one in container.get("env", []) if "secretKeyRef" in one.get("valueFrom", {})]
            assert taken == [], pod["metadata"]["name"]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"llmservice_fetch" not in command and (b"llmservice_runtime\0" in command or b"vllm" in command):
                assert value.encode() not in (folder / "environ").read_bytes(), command
        except OSError:
            continue  # a process that ended while we looked


def fetching_container(process: int) -> int:
    """The first process of the container that this one is in."""
    while True:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if b"llmservice_fetch\0serve" in Path(f"/proc/{process}/cmdline").read_bytes():
            return process
        process = int(fields[1])


def partial_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.incomplete"))


def told_progress(cluster: Cluster, name: str) -> JSON | None:
    """status.progress while something is fetched."""
    found: JSON = cluster.must_get("llmservices", NAMESPACE, name).get("status", {}).get("progress") or {}
    return found if found.get("percent") else None


def downloading_process() -> int:
    """The process on this machine, in whichever pod, that has a file open which is not whole yet."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"llmservice_fetch\0fetch\0" not in (folder / "cmdline").read_bytes():
                continue
            if any(handle.readlink().name.endswith(".incomplete") for handle in (folder / "fd").iterdir()):
                return int(folder.name)
        except OSError:
            continue  # a process that ended while we looked
    raise AssertionError("nobody downloads")
