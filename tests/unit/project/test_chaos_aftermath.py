"""The aftermath of a chaos run passes what the operator makes, and notices each way in which a cluster may differ."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from llmservice_cli.probe import Mode
from llmservice_cli.probe.report import ProbedRequest

from tests.chaos import aftermath
from tests.chaos.actions import Action, Desired, EndPod, KillOperator, Restart, Step, Storm
from tests.chaos.belongings import KINDS, left, orphans, stuck
from tests.chaos.executor import Window
from tests.chaos.faults import Kind
from tests.chaos.proxy import RUNNING_WATCH
from tests.unit.decide_world import SETTINGS, UID, World, an_llmservice

JSON = dict[str, Any]
Cluster = dict[str, list[JSON]]
TWO = Desired(replicas=2, max_num_seqs=9)
PLURALS = {
    "Deployment": "deployments",
    "Service": "services",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ControllerRevision": "controllerrevisions",
}


def cluster_of(desired: Desired = TWO) -> Cluster:
    """What the operator and Kubernetes make of a service x with this spec."""
    world = World(an_llmservice(desired.manifest("x")["spec"]), settings=SETTINGS)
    world.settle()
    world.roll_out()
    world.settle()
    found: Cluster = {plural: [] for plural in KINDS}
    for (kind, _), child in world.children.items():
        found[PLURALS[kind]].append(copy.deepcopy(child))
    deployment, service = world.deployment, world.children["Service", "x"]
    sets = owned("x-1", deployment, "uid-set")
    found["replicasets"] = [sets]
    found["pods"] = [
        pod | owned(pod["metadata"]["name"], sets, pod["metadata"]["uid"]) | {"spec": template(found)["spec"]}
        for pod in copy.deepcopy(list(world.pods.values()))
    ]
    found["endpointslices"] = [owned("x-abc", service, "uid-slice")]
    found["llmservices"] = [world.obj]
    return found


def owned(name: str, owner: JSON, uid: str) -> JSON:
    labels = {"llmservice.dev/service": "x"}
    references = [{"uid": owner["metadata"]["uid"]}]
    return {"metadata": {"name": name, "uid": uid, "labels": labels, "ownerReferences": references}}


def spec(found: Cluster, plural: str) -> JSON:
    part: JSON = found[plural][0]["spec"]
    return part


def template(found: Cluster) -> JSON:
    part: JSON = spec(found, "deployments")["template"]
    return part


def args(pod: JSON) -> list[str]:
    words: list[str] = pod["spec"]["containers"][0]["args"]
    return words


def ask_otherwise(found: Cluster, pod: JSON) -> None:
    changed = copy.deepcopy(pod["spec"])
    pod["spec"] = changed
    words = args(pod)
    words[words.index("--max-num-seqs") + 1] = "7"


@pytest.mark.parametrize("desired", [TWO, Desired(), Desired(replicas=0)], ids=["two", "one", "none"])
def test_what_the_operator_makes_is_what_the_spec_asks_for(desired: Desired) -> None:
    found = cluster_of(desired)
    assert aftermath.unlike("x", desired, found) == ""
    assert orphans(found) == []
    assert stuck(found) == []


DIFFERENCES: list[tuple[str, Callable[[Cluster], object], str]] = [
    ("the Service selects others", lambda f: spec(f, "services").update(selector={"a": "b"}), "the Service selects"),
    ("it selects more narrowly", lambda f: spec(f, "services")["selector"].update(a="b"), "the Service selects"),
    (
        "newcomers are published",
        lambda f: spec(f, "services").update(publishNotReadyAddresses=True),
        "addresses that are not ready",
    ),
    ("the Service is gone", lambda f: f["services"].clear(), "there is no Service"),
    ("the budget is gone", lambda f: f["poddisruptionbudgets"].clear(), "there is no PodDisruptionBudget"),
    (
        "the budget allows all",
        lambda f: spec(f, "poddisruptionbudgets").update(maxUnavailable=None, minAvailable=0),
        "the PodDisruptionBudget is",
    ),
    ("the Deployment is paused", lambda f: spec(f, "deployments").update(paused=True), "paused=True"),
    ("it has other replicas", lambda f: spec(f, "deployments").update(replicas=4), "has 4 replicas"),
    ("it keeps other history", lambda f: spec(f, "deployments").update(revisionHistoryLimit=1), "HistoryLimit is 1"),
    (
        "it gives pods no time",
        lambda f: template(f).update(spec=template(f)["spec"] | {"terminationGracePeriodSeconds": 1}),
        "grace period is 1 s",
    ),
    ("its template asks otherwise", lambda f: ask_otherwise(f, template(f)), "the Deployment has --max-num-seqs ['7']"),
    ("its record is gone", lambda f: f["controllerrevisions"].clear(), "there is no record of revision"),
    ("the Deployment is gone", lambda f: f["deployments"].clear(), "there is no Deployment"),
    ("a pod runs with other flags", lambda f: ask_otherwise(f, f["pods"][1]), "pod x-1 has --max-num-seqs ['7']"),
    ("a pod is one too many", lambda f: f["pods"].append(f["pods"][0]), "3 pods, 3 ready"),
    ("a pod is gone", lambda f: f["pods"].pop(), "1 pods, 1 ready"),
    (
        "an edit was not looked at",
        lambda f: f["llmservices"][0]["metadata"].update(generation=5),
        "generation 5 was not looked at",
    ),
    ("the service is gone", lambda f: f["llmservices"].clear(), "it is not there"),
]


@pytest.mark.parametrize(("change", "words"), [pytest.param(*rest, id=name) for name, *rest in DIFFERENCES])
def test_each_difference_is_told(change: Callable[[Cluster], object], words: str) -> None:
    found = cluster_of()
    change(found)
    assert words in aftermath.unlike("x", TWO, found)


def test_a_budget_of_one_replica_and_a_failure_that_did_not_come_are_differences() -> None:
    found = cluster_of(Desired())
    found["poddisruptionbudgets"] = cluster_of()["poddisruptionbudgets"]
    assert "a budget for one replica" in aftermath.unlike("x", Desired(), found)
    assert "the failure should be" in aftermath.unlike("x", Desired(fails="exit-0"), found)
    assert "no condition says Paused" in aftermath.unlike("x", Desired(paused=True), found)
    # What is refused is told as refused, also while it is paused.
    both = Desired(paused=True, unknown_flag=True)
    assert "an unknown flag was accepted" in aftermath.unlike("x", both, found)
    assert "an unknown flag was accepted" in aftermath.unlike("x", Desired(unknown_flag=True), found)


@pytest.mark.parametrize("plural", [plural for plural in KINDS if plural != "llmservices"])
def test_whatever_is_left_of_a_service_is_told(plural: str) -> None:
    found: Cluster = {each: [] for each in KINDS}
    assert aftermath.unlike("x", None, found) == ""
    found[plural] = [owned("left", {"metadata": {"uid": UID}}, "uid-left")]
    assert left("x", found) == [f"{plural}/left"]
    (told,) = orphans(found)
    assert told.startswith(f"{plural}/left of x")


def test_a_child_of_another_service_of_the_same_name_is_an_orphan() -> None:
    found = cluster_of()
    found["llmservices"][0]["metadata"]["uid"] = "another"
    assert len(orphans(found)) == sum(len(found[plural]) for plural in PLURALS.values())


def test_what_does_not_go_is_told() -> None:
    found = cluster_of()
    found["pods"][0]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    found["llmservices"][0]["metadata"]["finalizers"] = ["somebody/else"]
    assert [line.partition(" ")[0] for line in stuck(found)] == ["pods/x-0", "llmservices/x:"]


def row(sent: float, ended: float | None = None, loss: str | None = None, index: int = 0) -> ProbedRequest:
    mode = list(Mode)[index % len(Mode)]
    return ProbedRequest(index=index, mode=mode, sent=sent, ended=sent + 0.1 if ended is None else ended, loss=loss)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param([row(n / 3, index=n) for n in range(300)], "", id="as asked"),
        pytest.param([row(n / 3, index=n) for n in range(200)], "nothing was sent in the last 34 s", id="it ended"),
        pytest.param([row(float(n), index=n) for n in range(100)], "100 requests in 100 s", id="too few"),
        pytest.param([row(n / 3) for n in range(300)], "nothing was sent as", id="one mode only"),
        pytest.param([], "0 requests in 100 s", id="nothing"),
    ],
)
def test_load_that_was_not_sent_is_told(rows: list[ProbedRequest], words: str) -> None:
    told = aftermath.not_sent("x", rows, began=0.0, ended=100.0, rate=3)
    assert words in told
    assert bool(words) == bool(told)


def test_a_loss_needs_a_window_of_its_own_service() -> None:
    windows = [Window("x", 10.0, 20.0, "a killed pod"), Window("y", 30.0, 40.0, "a killed pod")]
    rows = [
        row(9.0, 10.5, "cut", 0),
        row(19.5, 21.0, "cut", 1),
        row(21.0, 22.0, "cut", 2),
        row(32.0, 33.0, "cut", 3),
        row(50.0, 51.0, None, 4),
    ]
    lost = aftermath.lost_without_excuse("x", rows, windows)
    assert [line.partition(": ")[2].split()[3] for line in lost] == ["cut", "cut"]
    assert len(aftermath.lost_without_excuse("x", rows, [])) == 4


def test_a_fault_or_a_kill_that_never_came_to_be_is_told() -> None:
    storm = Storm(((Kind.CONFLICT, 0.1), (Kind.EXPIRED, 0.1)))
    actions: list[Action] = [storm, KillOperator(1), EndPod("x", 1, "evict"), Restart("etcd", "kill", 1.0), Storm(())]
    steps = [Step(float(at), action) for at, action in enumerate(actions)]
    struck, fallen = Counter({"conflict": 1}), Counter({"kill of the operator": 1})
    assert aftermath.not_struck(steps, struck, fallen) == ["expired", RUNNING_WATCH, "kill of etcd"]
    struck += Counter({"expired": 2, RUNNING_WATCH: 1})
    assert aftermath.not_struck(steps, struck, fallen + Counter({"kill of etcd": 1})) == []
