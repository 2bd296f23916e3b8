"""Who gets an answer: API keys that are rotated under load, Secrets that are not as they should be, and a flood."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping

import httpx
import pytest
from llmservice_runtime.contract import HTTP_PORT, POD_TOKEN_FILE, POD_TOKEN_HEADER, SERVER_CONTAINER, STATE_PORT

from tests.support import rolling
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.patience import PATIENCE
from tests.support.services import stand_in
from tests.unit.runtime.test_flood import FLOOD, IDLE, running

pytestmark = pytest.mark.parallel

# The kubelet looks at its Secrets once a minute, and what it keeps of them is as old again.
EXCHANGED_WITHIN = 180
TRIES_SECONDS = 15
REFERENCE = {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}


def secret(text: str, key: str = "api-key") -> JSON:
    data = {key: base64.b64encode(text.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}


def status(pod: JSON, path: str, key: str = "", method: str = "GET", token: str = "") -> int:
    """Of one request to vLLM's port of a pod."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {POD_TOKEN_HEADER: token} if token else {}
    url = f"http://{pod['status']['podIP']}:{HTTP_PORT}{path}"
    return httpx.request(method, url, headers=headers, timeout=PATIENCE, trust_env=False).status_code


@contextlib.contextmanager
def asking(pod: JSON, key: str) -> Iterator[list[int]]:
    """Somebody who asks all the time with one key: each answer's status."""
    answers: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.05):
            answers.append(status(pod, "/v1/models", key))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def test_keys_are_rotated_under_load_without_a_restart(cluster: Cluster, namespace: str) -> None:
    cluster.apply(secret("old-key"), namespace)
    cluster.apply(stand_in("guarded", **REFERENCE), namespace)
    cluster.wait_condition(namespace, "guarded", "Ready", "True", timeout=90)
    pod = cluster.pod(namespace, "guarded")

    unguarded = {path: status(pod, path) for path in ("/health", "/ping", "/metrics")}
    guarded = {path: status(pod, path) for path in ("/v1/models", "/invocations", "/tokenize", "/version", "/nowhere")}
    assert unguarded == dict.fromkeys(unguarded, 200)
    assert guarded == dict.fromkeys(guarded, 401)
    assert status(pod, "/v1/models", "old-key") == 200

    with asking(pod, "old-key") as old:
        cluster.apply(secret("old-key\nnew-key\n"), namespace)
        eventually("the new key is accepted", lambda: status(pod, "/v1/models", "new-key") == 200, EXCHANGED_WITHIN)
    assert set(old) == {200}, "nobody was refused while both held"

    with asking(pod, "new-key") as new:
        cluster.apply(secret("new-key\n"), namespace)
        eventually("the old key is refused", lambda: status(pod, "/v1/models", "old-key") == 401, EXCHANGED_WITHIN)
    assert set(new) == {200}

    after = cluster.pod(namespace, "guarded")
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert rolling.restarts(after) == 0
    cluster.wait_condition(namespace, "guarded", "Ready", "True", timeout=5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        pytest.param(None, "VolumeUnavailable", 'secret "keys" not found', id="no secret"),
        pytest.param(secret("k", key="another"), "VolumeUnavailable", "non-existent secret key", id="no such key"),
        pytest.param(secret(" \n"), "APIKeyUnusable", "it is empty", id="no key in it"),
    ],
)
def test_a_secret_without_a_key_is_reported_and_starts_by_itself_when_it_has_one(
    cluster: Cluster, namespace: str, given: JSON | None, reason: str, words: str
) -> None:
    if given is not None:
        cluster.apply(given, namespace)
    cluster.apply(stand_in("guarded", **REFERENCE), namespace)
    cluster.wait_condition(namespace, "guarded", "Ready", "False", reason=reason, timeout=60)
    failure = cluster.failure(namespace, "guarded")
    assert words in failure["message"]
    assert "spec.endpoint.apiKeySecretRef" in failure["remedy"]
    cluster.apply(secret("right"), namespace)
    cluster.wait_condition(namespace, "guarded", "Ready", "True", timeout=300)
    assert status(cluster.pod(namespace, "guarded"), "/v1/models", "right") == 200


CLOSED: Mapping[str, JSON] = {
    "/v1/load_lora_adapter": {"lora_name": "x", "lora_path": "/tmp"},
    "/v1/unload_lora_adapter": {"lora_name": "x"},
    "/adapters": {"name": "x", "src": "/tmp"},
    "/collective_rpc": {"method": "x"},
}
"""Closed to clients."""


def test_what_manages_the_server_asks_for_the_pods_token(cluster: Cluster, namespace: str) -> None:
    """By a port-forward, whose client is on loopback as a proxy in the pod would be."""
    cluster.apply(stand_in("closed", lora={}), namespace)
    cluster.wait_condition(namespace, "closed", "Ready", "True", timeout=90)
    pod = cluster.pod(namespace, "closed")
    name = pod["metadata"]["name"]
    token = cluster.kubectl("exec", "-n", namespace, name, "-c", SERVER_CONTAINER, "--", "cat", POD_TOKEN_FILE).strip()
    with forwarded(cluster, namespace, name) as local:

        def post(path: str, body: JSON, headers: Mapping[str, str] | None = None) -> int:
            return httpx.post(local + path, json=body, headers=headers, timeout=PATIENCE, trust_env=False).status_code

        assert {path: post(path, body) for path, body in CLOSED.items()} == dict.fromkeys(CLOSED, 403)
        unload = "/v1/unload_lora_adapter"
        assert post(unload, CLOSED[unload], {POD_TOKEN_HEADER: "guessed"}) == 403
        assert post(unload, CLOSED[unload], {POD_TOKEN_HEADER: token}) not in (401, 403)


@contextlib.contextmanager
def forwarded(cluster: Cluster, namespace: str, pod: str) -> Iterator[str]:
    """kubectl port-forward to vLLM's port."""
    command = ["kubectl", "port-forward", "-n", namespace, f"pod/{pod}", f":{HTTP_PORT}"]
    with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield f"http://127.0.0.1:{line.rpartition('127.0.0.1:')[2].split(' ')[0]}"
        finally:
            process.terminate()


def test_a_flood_of_the_state_port_takes_no_replica_away(cluster: Cluster, namespace: str) -> None:
    """From the node, whose address the kubelet's probes have as well: the worst place for it."""
    cluster.apply(stand_in("flooded"), namespace)
    cluster.wait_condition(namespace, "flooded", "Ready", "True", timeout=90)
    pod = cluster.pod(namespace, "flooded")
    flood = (FLOOD, pod["status"]["podIP"], STATE_PORT, "", IDLE)
    with running(*flood), running(*flood):
        began = time.monotonic()
        unready = 0
        while time.monotonic() - began < TRIES_SECONDS:
            unready += not is_ready(cluster.pod(namespace, "flooded"))
            time.sleep(1)
    after = cluster.pod(namespace, "flooded")
    assert rolling.restarts(after) == 0
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert unready == 0
