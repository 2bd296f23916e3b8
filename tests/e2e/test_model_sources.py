"""Where models come from: a hub, a bucket, an image; one download for all replicas; and why there was none."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
from llmservice_runtime.fetch_protocol import read_document

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from localcluster.tinymodel.pairs import PAIRS
from tests.e2e.model_places import BRIDGE, CREDENTIALS, TOKEN, Places, model_places, secret
from tests.support import rolling
from tests.support.buckets import google_key
from tests.support.cloud_stores import ACCOUNT, ACCOUNT_KEY, AzureStore, GoogleStore, azure_store, google_store
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.fetching import partial_bytes
from tests.support.hub import Repo
from tests.support.measured import Record
from tests.support.models import claim_folder
from tests.support.object_store import ROOT
from tests.support.oci import import_folder
from tests.support.patience import PATIENCE
from tests.support.services import llmservice, merge
from tests.support.serving import Metrics, serving

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-sources"
IMAGE = "registry.local/tiny-chat-model:1"
SHARED, FULL, CUT, VERIFIED, KILLED = CLAIMS = ("shared-cache", "full-disk", "cut", "verified", "killed-cache")
QUESTION, ANSWER = PAIRS[0]
REPORTED_WITHIN = 300
"""Eight pods import what they need at once, on a machine that its host may give half of its processors."""


FOLDERS = ClusterPaths.of_this_clone().models / "sources"


@pytest.fixture(scope="module")
def sources(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    whole = Repo.of_folder(cached_model(print)).files
    cut = {**whole, "model.safetensors": whole["model.safetensors"][:-1000]}
    with model_places(cluster, NAMESPACE, tmp_path_factory.mktemp("s3"), cut=cut) as places:
        yield places
        volumes = [f"{NAMESPACE}-{claim}" for claim in CLAIMS]
        cluster.kubectl("delete", "pv", *volumes, "--ignore-not-found", "--wait=false")
    shutil.rmtree(FOLDERS, ignore_errors=True)


def writable_claim(cluster: Cluster, name: str) -> Path:
    """A claim that pods may write to; its folder on this machine."""
    folder = FOLDERS / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    claim_folder(cluster, NAMESPACE, name, folder, access="ReadWriteMany")
    return folder


@pytest.mark.full
def test_replicas_fetch_once_and_a_kill_costs_nothing(sources: Places, record: Record) -> None:
    """From a gated repository, into a claim that both share; whoever downloads is killed in the middle."""
    cluster, hub = sources.cluster, sources.hub
    cache = writable_claim(sources.cluster, SHARED)
    hub.bytes_per_second = 100_000  # most of a minute: the status tells how far it is every 15 seconds at most
    # A look at the model beforehand would be among the requests that are counted.
    spec = sources.at_the_hub("team/gated", secret="hub-token", cache=SHARED) | {
        "scaling": {"replicas": 2},
        "fitPolicy": "Ignore",
    }
    cluster.apply(llmservice("hub", **spec), NAMESPACE)
    eventually("a part of the weights", lambda: partial_bytes(cache) > 500_000, 180)
    seen = eventually("progress in the status", lambda: reported_progress(cluster, "hub"), 30)
    assert (seen["phase"], seen["artifact"]) == ("Fetching", "model")
    os.kill(downloading_process(), signal.SIGKILL)
    hub.bytes_per_second = None
    with serving(cluster, NAMESPACE, "hub", **spec) as server:
        starts = [asked.start for asked in hub.contents()]
        assert len(starts) == 2, "the weights are asked for once, and once more from where the kill left them"
        assert starts[0] == 0 < starts[1]
        assert len(server.pods()) == 2
        assert server.say(QUESTION) == ANSWER
        record(weights_asked_from=starts, percent=seen["percent"])
        assert_said_nowhere(cluster, TOKEN)
        assert_no_server_has(cluster, TOKEN)


@pytest.mark.full
def test_a_fetch_container_that_is_killed_goes_on_and_restarts_no_server(sources: Places, record: Record) -> None:
    """As the kernel ends it for memory: the kubelet starts it again, and the server asks it again."""
    cluster, hub = sources.cluster, sources.hub
    cache = writable_claim(sources.cluster, KILLED)
    hub.asked.clear()
    hub.bytes_per_second = 100_000
    spec = sources.at_the_hub("team/open", cache=KILLED) | {"fitPolicy": "Ignore"}
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
def test_code_in_the_server_can_neither_have_other_things_fetched_nor_write_the_cache(sources: Places) -> None:
    """It has the socket and no credentials: what it asks for beside the model is refused."""
    with serving(sources.cluster, NAMESPACE, "asked", **sources.in_the_bucket()) as server:
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
def test_what_another_writer_did_to_a_claim_is_not_served(sources: Places) -> None:
    """A damaged file is fetched again where hashes are verified; a file that nobody listed is not part of the model."""
    hub, cache = sources.hub, writable_claim(sources.cluster, VERIFIED)
    spec = sources.at_the_hub("team/open", cache=VERIFIED)
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
        room = Metrics(httpx.get(state, timeout=PATIENCE, trust_env=False).text).by_label(
            "llmservice_server_cache_bytes", "state"
        )
        assert room["used"] >= len(whole)
        assert room["available"] > 0


@pytest.mark.full
def test_a_bucket_with_credentials(sources: Places) -> None:
    with serving(sources.cluster, NAMESPACE, "bucket", **sources.in_the_bucket()) as server:
        assert server.say(QUESTION) == ANSWER
        for value in (ROOT.secret_key, ROOT.access_key):
            assert_said_nowhere(sources.cluster, value)
            assert_no_server_has(sources.cluster, value)


@contextmanager
def google() -> Iterator[tuple[GoogleStore, Mapping[str, str], JSON, str]]:
    """A store, the values of the Secret `google-keys`, spec.model, and the text that may appear nowhere."""
    key = google_key()
    reference = {"name": "google-keys", "key": "key.json"}
    with google_store(BRIDGE) as store:
        model = {"uri": "gs://models/team/tiny", "gcs": {"endpoint": store.url, "credentialsSecretRef": reference}}
        yield store, {"key.json": key}, model, json.loads(key)["private_key"].splitlines()[1]


@contextmanager
def azure() -> Iterator[tuple[AzureStore, Mapping[str, str], JSON, str]]:
    with tempfile.TemporaryDirectory() as folder, azure_store(Path(folder), BRIDGE) as store:
        access = {"account": ACCOUNT, "endpoint": store.endpoint, "credentialsSecretRef": {"name": "azure-keys"}}
        model = {"uri": "az://models/team/tiny", "azure": access}
        yield store, {"AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}, model, ACCOUNT_KEY


@pytest.mark.full
@pytest.mark.parametrize("cloud", [google, azure])
def test_a_bucket_of_another_cloud_with_a_key(
    sources: Places, cloud: Callable[[], AbstractContextManager[tuple[GoogleStore | AzureStore, Any, JSON, str]]]
) -> None:
    name = cloud.__name__
    with cloud() as (store, keys, model, private):
        store.make_bucket("models")
        for path, content in Repo.of_folder(cached_model(print)).files.items():
            store.put("models", f"team/tiny/{path}", content)
        sources.cluster.apply(secret(f"{name}-keys", keys), NAMESPACE)
        with serving(sources.cluster, NAMESPACE, name, model=model) as server:
            assert server.say(QUESTION) == ANSWER
            assert_said_nowhere(sources.cluster, private)


@pytest.mark.full
def test_an_image_as_a_volume(sources: Places) -> None:
    """Nothing is copied: the kubelet mounts the image, and its model is read where it lies."""
    import_folder(sources.cluster.paths, IMAGE, cached_model(print), "models/tiny")
    model = {"uri": f"image://{IMAGE}#models/tiny"}
    with serving(sources.cluster, NAMESPACE, "image", model=model) as server:
        assert server.say(QUESTION) == ANSWER
        (pod,) = server.pods()
        volumes = [volume["image"]["reference"] for volume in pod["spec"]["volumes"] if "image" in volume]
        assert volumes == [IMAGE]


Spec = Callable[[Places], JSON]
REFUSED: dict[str, tuple[Spec, str, str, str]] = {
    # name: (the parts of its spec, reason, text of the remedy, text of the message)
    "no-such-model": (lambda s: s.at_the_hub("team/none"), "ModelNotFound", "spec.model.uri", "team/none"),
    "no-such-revision": (lambda s: s.at_the_hub("team/open@v9"), "ModelRevisionNotFound", "spec.model.uri", "v9"),
    "gated": (lambda s: s.at_the_hub("team/gated"), "ModelAccessDenied", "hfTokenSecretRef", "gated"),
    "a-wrong-token": (
        lambda s: s.at_the_hub("team/gated", secret="revoked"),
        "ModelTokenRefused",
        "hfTokenSecretRef",
        "does not accept",
    ),
    "wrong-keys": (
        lambda s: s.in_the_bucket("wrong-keys"),
        "ModelTokenRefused",
        "credentialsSecretRef",
        "SignatureDoesNotMatch",
    ),
    "a-full-disk": (
        lambda s: s.at_the_hub("team/open", cache=FULL),
        "StorageFull",
        "spec.model.cache.size",
        "are still to be fetched",
    ),
    "a-broken-shard": (
        lambda s: s.at_the_hub("team/cut"),
        "ModelCorrupt",
        "where the uri points",
        "model.safetensors",
    ),
    "a-broken-copy": (
        lambda s: {"model": {"uri": f"pvc://{CUT}/"}},
        "ModelCorrupt",
        "where the uri points",
        "model.safetensors",
    ),
}


# None of them gets as far as to need more.
SMALL = {"requests": {"cpu": "10m", "memory": "128Mi"}}


@pytest.fixture(scope="module")
def refused(sources: Places) -> Iterator[None]:
    """All of them at once: none ever starts an engine."""
    disk = writable_claim(sources.cluster, FULL)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", str(disk)], check=True)
    copy = writable_claim(sources.cluster, CUT)
    for name, content in sources.hub.repos["team/cut"].files.items():
        (copy / name).write_bytes(content)
    small = {"runtime": {"resources": SMALL}}
    services = [llmservice(name, **merge(spec(sources), small)) for name, (spec, *_) in REFUSED.items()]
    sources.cluster.apply_all(services, NAMESPACE)
    yield
    sources.cluster.kubectl("delete", "llms", *REFUSED, "-n", NAMESPACE, "--wait=false")
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("case", REFUSED)
def test_why_there_is_no_model(cluster: Cluster, refused: None, case: str) -> None:
    _, reason, remedy, words = REFUSED[case]
    failure = eventually("a failure in the status", lambda: cluster.failure(NAMESPACE, case), REPORTED_WITHIN)
    assert failure["reason"] == reason, failure
    assert words in failure["message"], failure
    assert remedy in failure["remedy"], failure
    cluster.wait_condition(NAMESPACE, case, "Ready", "False", reason=reason, timeout=0)


def test_credentials_are_said_nowhere(cluster: Cluster, refused: None) -> None:
    for value in CREDENTIALS:
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


def reported_progress(cluster: Cluster, name: str) -> JSON | None:
    """status.progress while something is fetched."""
    found: JSON = cluster.status(NAMESPACE, name).get("progress") or {}
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
