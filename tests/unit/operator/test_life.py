"""The one life of a process: its stages, in their order, and what /readyz makes of them."""

import pytest
from kubeloop.health import Life, Stage
from kubeloop.informer import SyncState, watch_of
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.service.metrics import Metrics


def life(lease_problem: str | None = None) -> Life:
    sync = SyncState((None,), LLMSERVICE)
    for part in (watch_of(LLMSERVICE), LLMSERVICE.full_name):
        sync.synced(None, part)
    return Life(sync, lambda: lease_problem)


@pytest.mark.parametrize("reached", [Stage.STARTED, Stage.SYNCED, Stage.ACTING])
def test_a_stage_that_is_passed_is_not_gone_back_to(reached: Stage) -> None:
    """Namespaces may become warm, and a Lease be taken, while the process shuts down."""
    made = life()
    made.reach(Stage.STOPPING)
    made.reach(reached)
    assert (made.stage, made.is_acting) == (Stage.STOPPING, False)


@pytest.mark.parametrize(
    ("stage", "is_ready"),
    [(Stage.STARTED, False), (Stage.SYNCED, True), (Stage.ACTING, True), (Stage.STOPPING, False)],
)
def test_readyz_and_the_metric_show_the_stage(stage: Stage, is_ready: bool) -> None:
    made, metrics = life(), Metrics()
    made.reach(stage)
    assert made.readiness() == (is_ready, (f"stage: {stage}",))
    metrics.set_life(made.stage, SyncState((None,), LLMSERVICE))
    without_lease = life("missing right: get leases")
    without_lease.reach(Stage.SYNCED)
    assert without_lease.readiness() == (False, ("stage: synced", "missing right: get leases"))
    shown = [line for line in metrics.exposition().decode().splitlines() if line.startswith("llmservice_stage{")]
    assert sorted(shown) == sorted(f'llmservice_stage{{stage="{each}"}} {float(each is stage)}' for each in Stage)
