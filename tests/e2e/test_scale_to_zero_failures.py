"""Services without a replica while parts of the system fail, and while they are edited: what is lost, what is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from llmservice_cli.load.answer import Loss

from tests.e2e.scaled_to_zero import namespace_with
from tests.support.audit import requests_since, writes_since
from tests.support.cluster import Cluster, eventually
from tests.support.host import pause, without
from tests.support.keda import ACTIVATOR, without_keda, without_scaler
from tests.support.measured import Record
from tests.support.on_demand import (
    ANSWERED_WITHIN,
    Clients,
    OnDemand,
    activators,
    clients,
    held,
    held_by,
    kill,
    on_demand,
)
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, operator_pods, scale_operator
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.stand_in.behaviour import VARIABLE, Behaviour

pytestmark = pytest.mark.full

NAMESPACE = "e2e-zero-failures"
SLOW = {"start_seconds": 6}
HELD = 12
NOTICED_WITHIN = 90.0
NAMES = ("parts", "edited", "failing", "deleted", "paused", "given-back", "alone")


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    """A namespace with the services of all stories, each on its way to zero; a start takes some seconds."""
    with namespace_with(cluster, NAMESPACE, [on_demand(name, SLOW) for name in NAMES]):
        yield NAMESPACE


def at_zero(cluster: Cluster, name: str) -> OnDemand:
    service = OnDemand(cluster, NAMESPACE, name)
    service.at_zero()
    return service


Blow = Callable[[Cluster], None]


def operator_killed(cluster: Cluster) -> None:
    for pod in operator_pods(cluster):
        kill(pod, "llmservice_operator")


def operator_replaced(cluster: Cluster) -> None:
    with scale_operator(cluster, 0):
        pause(2)


def api_server_restarted(cluster: Cluster) -> None:
    with without(cluster, "kube-apiserver"):
        pause(2)


def kubelet_restarted(cluster: Cluster) -> None:
    with without(cluster, "kubelet"):
        pause(2)


def activators_replaced(cluster: Cluster) -> None:
    """What they hold is answered before they end."""
    restart = ("rollout", "restart", f"deployment/{ACTIVATOR}", "-n", OPERATOR_NAMESPACE)
    cluster.kubectl(*restart)
    cluster.kubectl("rollout", "status", f"deployment/{ACTIVATOR}", "-n", OPERATOR_NAMESPACE, KUBECTL_TIMEOUT)


def keda_replaced(cluster: Cluster) -> None:
    with without_keda(cluster):
        pause(2)


BLOWS: tuple[Blow, ...] = (
    operator_killed,
    operator_replaced,
    api_server_restarted,
    kubelet_restarted,
    activators_replaced,
    keda_replaced,
)


def while_requests_are_held(service: OnDemand, asking: Clients) -> None:
    asking.send(HELD)
    held(service, 1)


def on_the_way_down(service: OnDemand, asking: Clients) -> None:
    """The slice is there, and so is the last replica."""
    asking.send(HELD)
    asking.rows()
    service.serves()

    def reached() -> bool:
        if service.replicas:
            service.scale(0)
        return bool(service.slices())

    eventually("the slice is made", reached, NOTICED_WITHIN)


def while_the_last_pod_ends(service: OnDemand, asking: Clients) -> None:
    on_the_way_down(service, asking)

    def reached() -> bool:
        if service.replicas:
            service.scale(0)
        pods = service.pods()
        return bool(pods) and all("deletionTimestamp" in pod["metadata"] for pod in pods)

    eventually("the last pod ends", reached, NOTICED_WITHIN)


PHASES = (while_requests_are_held, on_the_way_down, while_the_last_pod_ends)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("blow", BLOWS, ids=lambda blow: blow.__name__)
def test_no_request_is_lost_when_a_part_ends(
    cluster: Cluster, there: str, blow: Blow, phase: Callable[[OnDemand, Clients], None], record: Record
) -> None:
    """And the service is at zero again afterwards, by itself, and wakes again."""
    service = OnDemand(cluster, there, "parts")
    service.down()
    with clients(service) as asking:
        phase(service, asking)
        blow(cluster)
        asking.send(HELD)
        assert asking.lost() == []
        service.at_zero()
        asking.send(1)
        assert asking.lost() == []
        record(sent=len(asking.sent), lost=0)


def test_a_killed_activator_loses_what_it_held_and_nothing_else(cluster: Cluster, there: str, record: Record) -> None:
    service = at_zero(cluster, "alone")
    with clients(service) as asking:
        asking.send(HELD)
        held(service, HELD)
        lost = max(held_by(service).items(), key=lambda found: found[1])
        (struck,) = [pod for pod in activators(cluster) if pod["metadata"]["name"] == lost[0]]
        kill(struck, "llmservice_activator")
        rows = asking.rows()
        failed = [row for row in rows if not row.is_complete]
        assert len(failed) == lost[1]
        assert {row.loss for row in failed} <= {Loss.DISCONNECTED, Loss.CUT}
        eventually("both activators", lambda: len(activators(cluster)) == 2, NOTICED_WITHIN)
        service.at_zero()
        before = len(failed)
        asking.send(4)
        assert len(asking.lost()) == before
    record(sent=len(rows), lost=len(failed))


def test_without_keda_the_first_request_is_answered_all_the_same(cluster: Cluster, there: str) -> None:
    service = at_zero(cluster, "alone")
    with without_keda(cluster), clients(service) as asking:
        asking.send(4)
        assert asking.lost() == []
        assert service.replicas == 1
    service.at_zero()


def test_without_activators_a_replica_comes_before_the_slice_goes(cluster: Cluster, there: str) -> None:
    """The condition says so; with activators the service is at zero again."""
    service = at_zero(cluster, "alone")
    with without_scaler(cluster):
        cluster.wait_condition(
            there, "alone", "Autoscaled", "False", reason="HoldingUnavailable", timeout=NOTICED_WITHIN
        )
        service.serves()
        eventually("an answer of the replica", lambda: is_answered(service), 30)
    service.at_zero()


def is_answered(service: OnDemand) -> bool:
    """False while a connection still goes to the address of an activator that is gone."""
    try:
        return service.ask().status_code == 200
    except httpx.TransportError:
        return False


def change(service: OnDemand, **spec: object) -> None:
    service.cluster.patch("llmservices", NAMESPACE, service.name, {"spec": spec})


def test_requests_that_wait_are_answered_by_the_revision_of_an_edit(cluster: Cluster, there: str) -> None:
    service = at_zero(cluster, "edited")
    with clients(service) as asking:
        asking.send(HELD)
        held(service, HELD)
        change(service, batching={"maxNumSeqs": 32})
        assert asking.lost() == []
    revision = cluster.status(there, "edited")["rollout"]["revision"]
    eventually("only the new revision", lambda: revisions(service) == {revision}, NOTICED_WITHIN)


def revisions(service: OnDemand) -> set[str]:
    stay = service.cluster.pods(service.namespace, service.name)
    return {pod["metadata"]["labels"]["llmservice.dev/revision"] for pod in stay}


def answer_of(service: OnDemand, do: Callable[[], None]) -> httpx.Response:
    """The answer to a request that is held while something is done."""
    with ThreadPoolExecutor(1) as beside:
        answer = beside.submit(service.ask)
        held(service, 1)
        do()
        return answer.result(ANSWERED_WITHIN)


def test_a_start_that_fails_answers_with_the_reason(cluster: Cluster, there: str) -> None:
    """What is held, and what comes later; a repaired one answers again."""
    service = at_zero(cluster, "failing")
    broken = [{"name": VARIABLE, "value": Behaviour(fails="kv-cache-too-small").to_env()}]
    change(service, runtime={"env": broken})
    first = service.ask()
    cluster.wait_condition(there, "failing", "Stalled", "True", timeout=NOTICED_WITHIN)
    reason = cluster.failure(there, "failing")["reason"]
    for answer in (first, service.ask()):
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, reason), answer.text
    change(service, runtime={"env": None})
    eventually("an answer", lambda: service.ask().status_code == 200, NOTICED_WITHIN)


def test_a_deleted_service_answers_what_it_held(cluster: Cluster, there: str) -> None:
    service = at_zero(cluster, "deleted")
    answer = answer_of(service, lambda: deleted(cluster, "deleted"))
    assert answer.status_code == 503
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    eventually("no slice", lambda: not service.slices(), 60)


def deleted(cluster: Cluster, name: str) -> None:
    cluster.kubectl("delete", "llms", name, "-n", NAMESPACE, "--wait=true", KUBECTL_TIMEOUT)


def test_a_paused_service_holds_nothing(cluster: Cluster, there: str) -> None:
    service = at_zero(cluster, "paused")
    answer = answer_of(service, lambda: change(service, paused=True))
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Paused")
    change(service, paused=None)
    service.serves()
    assert service.ask().status_code == 200


def test_without_autoscaling_replicas_are_the_users_at_zero_too(cluster: Cluster, there: str) -> None:
    service = at_zero(cluster, "given-back")
    change(service, scaling={"autoscaling": None})
    eventually("no ScaledObject", lambda: cluster.get("scaledobjects", there, "given-back") is None, 60)
    answer = service.ask()
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ScaledToZero")
    assert (service.replicas, service.pods()) == (0, [])
    eventually("no condition", lambda: cluster.condition(there, "given-back", "Autoscaled") is None, 60)
    service.scale(1)
    service.serves()
    eventually("no slice", lambda: not service.slices(), 60)
    assert service.ask().status_code == 200


USED: dict[str, set[tuple[str, str]]] = {
    OPERATOR: {("endpointslices", "patch"), ("endpointslices", "delete"), ("leases", "create")},
    ACTIVATOR: {("llmservices/scale", "get"), ("llmservices/scale", "patch"), ("endpointslices", "watch")},
}
"""Rights that only services without a replica need."""


@pytest.mark.parametrize("account", USED)
def test_the_rights_of_holding_are_used_and_enough(cluster: Cluster, there: str, account: str) -> None:
    """By the audit log of one time up and down, and of a new service, which gets a port."""
    began, service = time.time(), at_zero(cluster, "alone")
    another = f"another-{list(USED).index(account)}"
    cluster.apply(on_demand(another), there)
    at_zero(cluster, another)
    assert service.ask().status_code == 200
    service.at_zero()
    asked = list(requests_since(cluster, began, f"system:serviceaccount:{OPERATOR_NAMESPACE}:{account}"))
    assert USED[account] <= {(one.resource, one.verb) for one in asked}
    assert [one for one in asked if one.code == 403] == []


def test_at_zero_nothing_is_written(cluster: Cluster, there: str, record: Record) -> None:
    """Neither by the operator nor by the activators, whose Leases and Events would be writes too."""
    at_zero(cluster, "alone")
    pause(5)  # for what follows the last change
    began = time.time()
    pause(60)
    users = {name: f"system:serviceaccount:{OPERATOR_NAMESPACE}:{name}" for name in USED}
    written = {name: writes_since(cluster, began, user) for name, user in users.items()}
    record(**{name: len(found) for name, found in written.items()})
    assert written == {OPERATOR: [], ACTIVATOR: []}
