"""From `kubectl apply` of the smallest manifest to an answer; an edit that serves; a scale that restarts nothing."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
import yaml

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.pairs import PAIRS
from tests.support.client import ClientPod
from tests.support.cluster import Cluster, eventually
from tests.support.operator import host_process, operator_pods
from tests.support.patience import PATIENCE, at_most
from tests.support.serving import of_supervisor

pytestmark = pytest.mark.beside_keda
READY_WITHIN = int(at_most(600))
QUESTION, ANSWER = PAIRS[0]


def flags_of_vllm(cluster: Cluster, namespace: str, pod: str) -> str:
    """What the vLLM that runs in the pod says that it was started with: a Python dict."""
    log = cluster.kubectl("logs", pod, "-n", namespace, "-c", "server")
    (line,) = (line for line in log.splitlines() if "non-default args: " in line)
    return line.partition("non-default args: ")[2]


@pytest.fixture(scope="module")
def tiny_chat(cluster: Cluster, shared_namespace: str) -> str:
    """The example that the README shows, applied as the README says."""
    example = ClusterPaths.of_this_clone().root / "examples" / "tiny-chat.yaml"
    cluster.kubectl("apply", "-n", shared_namespace, "-f", str(example))
    name: str = yaml.safe_load(example.read_text())["metadata"]["name"]
    cluster.kubectl(
        "wait", "-n", shared_namespace, "--for=condition=Ready", f"llms/{name}", f"--timeout={READY_WITHIN}s",
        timeout=READY_WITHIN + 10,
    )  # fmt: skip
    return name


def test_the_smallest_manifest_answers_another_pod(client: ClientPod, tiny_chat: str) -> None:
    answer = client.chat(tiny_chat, QUESTION)
    assert (answer.status, answer.text) == (200, ANSWER)


def test_a_stream_arrives_whole(client: ClientPod, tiny_chat: str) -> None:
    answer = client.chat(tiny_chat, QUESTION, stream=True)
    assert (answer.status, answer.streamed) == (200, ANSWER)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_goes_away_is_counted(
    cluster: Cluster, shared_namespace: str, tiny_chat: str, stream: bool
) -> None:
    """Not by vLLM, whose counter of aborted requests stays as it is."""
    (pod,) = cluster.pods(shared_namespace, tiny_chat)
    name = "llmservice_server_requests_aborted_total"
    before = of_supervisor(pod).value(name)
    # So many answers at once that the work is not over before a client goes that a busy machine has made late.
    much = {"max_tokens": 400, "ignore_eos": True, "temperature": 1, "n": 256}
    body = {"model": tiny_chat, "prompt": QUESTION, "stream": stream, **much}
    url = f"http://{pod['status']['podIP']}:8000/v1/completions"
    if stream:
        with httpx.stream("POST", url, json=body, timeout=PATIENCE, trust_env=False) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=httpx.Timeout(30, read=0.3), trust_env=False)
    eventually("it is counted", lambda: of_supervisor(pod).value(name) == before + 1, 30)


def test_kubectl_get_tells_the_story_in_one_line(cluster: Cluster, shared_namespace: str, tiny_chat: str) -> None:
    header, line = cluster.kubectl("get", "llms", tiny_chat, "-n", shared_namespace).splitlines()
    assert header.split() == ["NAME", "MODEL", "GPUS", "READY", "URL", "REASON", "AGE"]
    for expected in (tiny_chat, "file:///models/tiny-chat", "1/1", f"http://{tiny_chat}.{shared_namespace}.svc/v1"):
        assert expected in line.split()


@pytest.mark.full
def test_an_edit_is_ready_only_when_it_serves(cluster: Cluster, shared_namespace: str, tiny_chat: str) -> None:
    """And the operator that began the rollout is killed in the middle of it."""
    before = cluster.pods(shared_namespace, tiny_chat)[0]["metadata"]["name"]
    # A UID that the image's passwd does not know comes with the same rollout: it has to serve too.
    edit = {"batching": {"maxNumSeqs": 7}, "podTemplate": {"spec": {"securityContext": {"runAsUser": 54321}}}}
    cluster.patch("llmservices", shared_namespace, tiny_chat, {"spec": edit})
    eventually("the new pod", lambda: len(cluster.pods(shared_namespace, tiny_chat)) == 2, 30)
    (operator,) = operator_pods(cluster)
    os.kill(host_process(cluster, operator), signal.SIGKILL)
    cluster.kubectl(
        "wait", "-n", shared_namespace, "--for=condition=Ready", f"llms/{tiny_chat}", f"--timeout={READY_WITHIN}s",
        timeout=READY_WITHIN + 10,
    )  # fmt: skip
    (pod,) = cluster.pods(shared_namespace, tiny_chat)
    assert pod["metadata"]["name"] != before
    assert pod["spec"]["securityContext"]["runAsUser"] == 54321
    assert "'max_num_seqs': 7" in flags_of_vllm(cluster, shared_namespace, pod["metadata"]["name"])


@pytest.mark.full
def test_scaling_through_the_subresource_restarts_nothing(
    cluster: Cluster, client: ClientPod, shared_namespace: str, tiny_chat: str
) -> None:
    (first,) = cluster.pods(shared_namespace, tiny_chat)
    cluster.kubectl("scale", f"llms/{tiny_chat}", "--replicas=2", "-n", shared_namespace)
    eventually(
        "two pods and a disruption budget",
        lambda: (
            len(cluster.pods(shared_namespace, tiny_chat)) == 2
            and cluster.get("poddisruptionbudgets", shared_namespace, tiny_chat)
        ),
        30,
    )
    cluster.wait_condition(shared_namespace, tiny_chat, "Ready", "True", timeout=READY_WITHIN)
    same = cluster.must_get("pods", shared_namespace, first["metadata"]["name"])
    assert same["metadata"]["uid"] == first["metadata"]["uid"]
    assert [status["restartCount"] for status in same["status"]["containerStatuses"]] == [0]
    cluster.kubectl("scale", f"llms/{tiny_chat}", "--replicas=1", "-n", shared_namespace)
    eventually(
        "one pod and no disruption budget",
        lambda: (
            len(cluster.pods(shared_namespace, tiny_chat)) == 1
            and cluster.get("poddisruptionbudgets", shared_namespace, tiny_chat) is None
        ),
        60,
    )
    cluster.wait_condition(shared_namespace, tiny_chat, "Ready", "True", timeout=60)
    assert client.chat(tiny_chat, QUESTION).text == ANSWER


def test_an_edit_that_cannot_work_leaves_the_old_one_serving(
    cluster: Cluster, client: ClientPod, shared_namespace: str, tiny_chat: str
) -> None:
    """What the schema cannot know is refused before a pod exists, with the remedy."""
    pods = {pod["metadata"]["uid"] for pod in cluster.pods(shared_namespace, tiny_chat)}
    arguments = '{"spec":{"runtime":{"extraArgs":["--no-such-flag"]}}}'
    cluster.kubectl("patch", "llms", tiny_chat, "-n", shared_namespace, "--type=merge", "-p", arguments)
    refused = cluster.wait_condition(shared_namespace, tiny_chat, "Accepted", "False", reason="UnknownFlag", timeout=10)
    assert "--no-such-flag" in refused["message"]
    assert "spec.runtime.extraArgs" in refused["message"]
    assert {pod["metadata"]["uid"] for pod in cluster.pods(shared_namespace, tiny_chat)} == pods
    assert client.chat(tiny_chat, QUESTION).text == ANSWER
    cluster.patch("llmservices", shared_namespace, tiny_chat, {"spec": {"runtime": {"extraArgs": None}}})
    cluster.wait_condition(shared_namespace, tiny_chat, "Ready", "True", timeout=30)
    assert {pod["metadata"]["uid"] for pod in cluster.pods(shared_namespace, tiny_chat)} == pods
