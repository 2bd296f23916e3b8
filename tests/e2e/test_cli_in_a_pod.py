"""The command line inside the cluster: with a pod's service account, without a kubeconfig, in the pod's namespace."""

from __future__ import annotations

import copy
import json

import pytest

from tests.support.client import POD, ClientPod
from tests.support.cluster import JSON, Cluster, CommandFailed
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle

pytestmark = pytest.mark.parallel

ACCOUNT: JSON = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "shell"}}
MAY_VIEW: JSON = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "shell"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    "subjects": [{"kind": "ServiceAccount", "name": "shell"}],
}


def shell_pod() -> JSON:
    pod: JSON = copy.deepcopy(POD)
    pod["spec"] |= {"serviceAccountName": "shell", "automountServiceAccountToken": True}
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "256Mi"
    return pod


@pytest.fixture
def shell(cluster: Cluster, namespace: str) -> ClientPod:
    """With the rights of somebody who may view the namespace."""
    subjects = [{**subject, "namespace": namespace} for subject in MAY_VIEW["subjects"]]
    cluster.apply_all([ACCOUNT, {**MAY_VIEW, "subjects": subjects}, idle("chat")], namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True", timeout=60)
    cluster.apply(shell_pod(), namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/client", KUBECTL_TIMEOUT)
    return ClientPod(cluster, namespace)


def llmservice(shell: ClientPod, *words: str) -> str:
    command = ("exec", "-n", shell.namespace, "client", "--", "python", "-m", "llmservice_cli", *words)
    return shell.cluster.kubectl(*command)


def test_it_finds_its_own_cluster_and_namespace(shell: ClientPod) -> None:
    (found,) = json.loads(llmservice(shell, "status", "-o", "json"))["services"]
    assert (found["name"], found["namespace"]) == ("chat", shell.namespace)
    assert "chat is Ready" in llmservice(shell, "wait", "chat", "--timeout", "0")


def test_a_missing_right_is_named(shell: ClientPod) -> None:
    with pytest.raises(CommandFailed) as refused:
        llmservice(shell, "rollback", "chat", "--to", "1")
    assert f"system:serviceaccount:{shell.namespace}:shell" in str(refused.value)
    assert "what to do: grant it: patch llmservices.llmservice.dev" in str(refused.value)
