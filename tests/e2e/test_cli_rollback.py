"""`llmservice history`, `rollback` and `update` on a real cluster: a change is undone, and the undoing too."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.cluster import Cluster, CommandFailed
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel


def llmservice(cluster: Cluster, namespace: str, *words: str) -> str:
    return cluster.run(sys.executable, "-m", "llmservice_cli", *words, "-n", namespace, timeout=120)


def max_num_seqs(cluster: Cluster, namespace: str) -> str:
    """What the pods of the Deployment are started with."""
    (container,) = cluster.must_get("deployments", namespace, "chat")["spec"]["template"]["spec"]["containers"]
    args = container["args"]
    return str(args[args.index("--max-num-seqs") + 1])


def test_a_change_is_undone_and_the_undoing_too(cluster: Cluster, namespace: str) -> None:
    for seqs in (4, 8):
        cluster.apply(stand_in("chat", batching={"maxNumSeqs": seqs}), namespace)
        cluster.wait_condition(namespace, "chat", "Ready", "True", reason="RolledOut", timeout=90)
    history = json.loads(llmservice(cluster, namespace, "history", "chat", "-o", "json"))["revisions"]
    assert [revision["standing"] for revision in history] == ["runs, last rolled out", ""]
    assert "--max-num-seqs: 4 -> 8" in llmservice(cluster, namespace, "history", "chat")

    llmservice(cluster, namespace, "rollback", "chat", "--dry-run")
    assert max_num_seqs(cluster, namespace) == "8"
    assert "chat is Ready" in llmservice(cluster, namespace, "rollback", "chat", "--wait", "--timeout", "90s")
    assert max_num_seqs(cluster, namespace) == "4"
    assert "chat is Ready" in llmservice(cluster, namespace, "rollback", "chat", "--undo", "--wait")
    assert max_num_seqs(cluster, namespace) == "8"

    asked = llmservice(cluster, namespace, "update", "chat", "--wait")
    assert "update requested; nothing was known to wait in it" in asked
    with pytest.raises(CommandFailed, match="has no recorded revision '9'"):
        llmservice(cluster, namespace, "rollback", "chat", "--to", "9")
    with pytest.raises(CommandFailed, match="there is no LLMService 'nobody'"):
        llmservice(cluster, namespace, "history", "nobody")
