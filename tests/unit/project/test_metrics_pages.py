"""Every /metrics page of ours passes promtool's checks; when their certificates expire is on them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kubeloop.health import Certificate
from kubeloop.resources import Key
from llmservice_activator.holding.interface import Reason as HeldReason
from llmservice_activator.metrics import Metrics as ActivatorMetrics
from llmservice_activator.server import MutualTls
from llmservice_api.holding import LastUse
from llmservice_operator.service.metrics import Metrics
from llmservice_runtime import shared_counters
from llmservice_runtime.contract import Measured, Phase, State, Transfer, TransferStep
from llmservice_runtime.supervisor.metrics import Snapshot, exposition
from prometheus_client.parser import text_string_to_metric_families

from tests.support.certificates import Authority
from tests.support.prometheus import promtool

DAY = 86_400
KEY = Key("a", "x")


def operators_page() -> str:
    metrics = Metrics()
    conditions = [
        {"type": "Ready", "status": "False", "reason": "EngineDied"},
        {"type": "Available", "status": "False", "reason": "NoReplicaReady"},
    ]
    metrics.set_status(KEY, {"conditions": conditions, "failure": {"reason": "EngineDied"}}, before={})
    metrics.observe_request("get", "pods", 200, 0.1)
    metrics.add_streams_ended(KEY, 1)
    return metrics.exposition().decode()


def activators_page() -> str:
    metrics = ActivatorMetrics()
    metrics.held(KEY)
    metrics.lost(KEY, HeldReason.POD_FAILED)
    metrics.called("IsActive", "OK")
    metrics.show_uses({KEY: LastUse(1.8e9, "POST", "/v1/embeddings")})
    metrics.certificate_expiry.labels("scaler").set(1.8e9)
    return metrics.exposition().decode()


def supervisors_page() -> str:
    state = State(
        phase=Phase.FETCHING,
        transfer=Transfer("model", TransferStep.DOWNLOADING, 1, 2),
        measured=Measured(start_seconds=3.0),
    )
    slots = [*range(shared_counters.LAST), shared_counters.pack_use(1.8e9, "POST", "/v1/embeddings")]
    return exposition(Snapshot(state, slots, keys=1))


PAGES = {"operator": operators_page, "activator": activators_page, "supervisor": supervisors_page}


@pytest.mark.parametrize("page", PAGES)
def test_promtool_finds_nothing_to_mend(page: str) -> None:
    text = PAGES[page]()
    assert len(list(text_string_to_metric_families(text))) > 5
    promtool("check", "metrics", text=text)


def test_promtool_would_find_a_metric_without_help() -> None:
    with pytest.raises(AssertionError, match="no help text"):
        promtool("check", "metrics", text="# TYPE a_seconds gauge\na_seconds 1\n")


def test_when_a_certificate_expires_is_read_and_read_again_when_it_is_renewed(tmp_path: Path) -> None:
    folder = Authority.make(tmp_path / "ca").issue(tmp_path / "tls")
    certificate, tls = Certificate(folder), MutualTls(folder)
    for found in (certificate.expires_at, tls.expires_at):
        assert time.time() + DAY < found < time.time() + 3 * DAY
    certificate.expires_at = 0.0
    Authority.make(tmp_path / "other").issue(folder)
    assert (certificate.refresh(), tls.refresh()) == (True, True)
    assert certificate.expires_at == tls.expires_at > time.time() + DAY
