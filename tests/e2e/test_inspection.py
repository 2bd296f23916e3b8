"""A model is looked at where it lies before there is any pod for it: what was found, what was not touched for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from tests.e2e.model_places import CREDENTIALS, Places, model_places
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.models import claim_folder, release_folder
from tests.support.services import idle
from tests.support.weights import header_bytes

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-inspection"
CLAIM = "inspected"
WEIGHTS = "model.safetensors"
KNOWN_WITHIN = 120.0
"""The Job's pod starts, asks a few questions and ends."""
GIVEN_UP_WITHIN = 90.0


@pytest.fixture(scope="module")
def places(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """With a claim too, which holds the model in `tiny`."""
    folder = ClusterPaths.of_this_clone().models / "inspected"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cached_model(print), folder / "tiny")
    with model_places(cluster, NAMESPACE, tmp_path_factory.mktemp("s3")) as made:
        claim_folder(cluster, NAMESPACE, CLAIM, folder)
        yield made
        release_folder(cluster, NAMESPACE, CLAIM)
    shutil.rmtree(folder, ignore_errors=True)


def known_model(cluster: Cluster, name: str) -> JSON | None:
    """status.model once it is there."""
    return cluster.status(NAMESPACE, name).get("model")


def asked_for(places: Places, name: str, **spec: Any) -> JSON:
    """What the status tells of the model of a service that makes no pods of its own."""
    places.cluster.apply(idle(name, batching={"maxModelLen": None}, **spec), NAMESPACE)
    return eventually(
        f"what is known of the model of {name}", lambda: known_model(places.cluster, name), GIVEN_UP_WITHIN
    )


def tensor_bytes(model: Path) -> int:
    """All that stands behind the header of the only file of weights."""
    weights = (model / WEIGHTS).read_bytes()
    return len(weights) - header_bytes(weights)


def assert_known(places: Places, name: str, reported: JSON) -> None:
    """Everything is there, and nothing is left behind."""
    assert "failure" not in reported, reported
    parts = {part: size for part, size in reported["tensors"].items() if part not in ("parameters", "dtype")}
    assert sum(parts.values()) == tensor_bytes(cached_model(print))
    assert parts["attention"] > 0 < parts["feedForward"]
    full = json.loads((cached_model(print) / "config.json").read_text())
    kept = json.loads(reported["config"])
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert kept[key] == full[key]
    fits = places.cluster.wait_condition(NAMESPACE, name, "Fits", "True", timeout=KNOWN_WITHIN)
    assert fits["reason"] == "Fits"
    assert_no_job_left(places.cluster, name)


def assert_no_job_left(cluster: Cluster, name: str) -> None:
    left = {"jobs": f"llmservice.dev/service={name}", "pods": f"llmservice.dev/inspects={name}"}
    eventually("no Job, no pod", lambda: not any(cluster.list(kind, NAMESPACE, of) for kind, of in left.items()), 30)


def test_a_gated_repository_and_no_weights(places: Places, record: Record) -> None:
    places.hub.sent.clear()
    reported = asked_for(places, "gated", **places.at_the_hub("team/gated", secret="hub-token"))
    assert_known(places, "gated", reported)
    assert reported["revision"] == places.hub.repos["team/gated"].commit
    weights = (cached_model(print) / WEIGHTS).read_bytes()
    assert places.hub.sent == {WEIGHTS: header_bytes(weights)}
    record(header=header_bytes(weights), weights=len(weights), message=len(reported["config"]))


def test_an_edit_of_something_else_does_not_look_again(places: Places) -> None:
    reported = asked_for(places, "edited", **places.at_the_hub("team/open"))
    before = len(places.hub.asked)
    places.cluster.patch("llmservices", NAMESPACE, "edited", {"spec": {"batching": {"maxNumSeqs": 7}}})

    places.cluster.wait_condition(NAMESPACE, "edited", "Fits", "True", timeout=KNOWN_WITHIN)
    assert len(places.hub.asked) == before
    assert known_model(places.cluster, "edited") == reported


def test_another_revision_is_looked_at(places: Places) -> None:
    reported = asked_for(places, "moved", **places.at_the_hub("team/open"))
    before = len(places.hub.asked)
    pinned = f"hf://team/open@{places.hub.repos['team/open'].commit}"
    places.cluster.patch("llmservices", NAMESPACE, "moved", {"spec": {"model": {"uri": pinned}}})

    def is_another() -> JSON | None:
        found = known_model(places.cluster, "moved")
        return found if found and found["inspection"] != reported["inspection"] else None

    moved = eventually("another inspection", is_another, KNOWN_WITHIN)
    assert moved["revision"] == reported["revision"]
    assert len(places.hub.asked) > before
    assert_no_job_left(places.cluster, "moved")


def test_a_bucket(places: Places) -> None:
    reported = asked_for(places, "bucket", **places.in_the_bucket())
    assert_known(places, "bucket", reported)
    assert len(reported["revision"]) == 40


def test_a_claim(places: Places) -> None:
    reported = asked_for(places, "claim", model={"uri": f"pvc://{CLAIM}/tiny"})
    assert_known(places, "claim", reported)
    assert "revision" not in reported


Spec = Callable[[Places], JSON]
REFUSED: dict[str, tuple[Spec, str, str]] = {
    # name: (the parts of its spec, two texts of the message)
    "no-repository": (lambda p: p.at_the_hub("team/none"), "has no model team/none", "spec.model.uri"),
    "no-revision": (lambda p: p.at_the_hub("team/open@v9"), "no revision 'v9'", "behind the @"),
    "no-token": (lambda p: p.at_the_hub("team/gated"), "is gated", "spec.model.hfTokenSecretRef"),
    "revoked-token": (
        lambda p: p.at_the_hub("team/gated", secret="revoked"),
        "does not accept the token",
        "spec.model.hfTokenSecretRef",
    ),
    "wrong-keys": (
        lambda p: p.in_the_bucket("wrong-keys"),
        "does not accept the credentials",
        "spec.model.s3.credentialsSecretRef",
    ),
    "no-folder": (
        lambda p: {"model": {"uri": f"pvc://{CLAIM}/none"}},
        "There is no /llmservice/source/none",
        "relative to the claim's root",
    ),
    "no-secret": (
        lambda p: p.at_the_hub("team/gated", secret="nobody-made-it"),
        'secret "nobody-made-it" not found',
        "spec.model.architecture",
    ),
    "no-claim": (
        lambda p: {"model": {"uri": "pvc://nobody-made-it/x"}},
        'persistentvolumeclaim "nobody-made-it" not found',
        "spec.model.architecture",
    ),
}


@pytest.fixture(scope="module")
def refused(places: Places) -> None:
    """All at once."""
    length = {"maxModelLen": None}
    services = [idle(name, batching=length, **spec(places)) for name, (spec, _, _) in REFUSED.items()]
    places.cluster.apply_all(services, NAMESPACE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_looked_at_is_said_and_stops_nothing(cluster: Cluster, refused: None, name: str) -> None:
    _, words, remedy = REFUSED[name]

    def is_reported() -> bool:
        fits = cluster.condition(NAMESPACE, name, "Fits") or {"message": ""}
        return fits.get("status") == "Unknown" and words in fits["message"] and remedy in fits["message"]

    eventually("the reason and what to do", is_reported, GIVEN_UP_WITHIN)
    eventually("the Deployment all the same", lambda: cluster.get("deployments", NAMESPACE, name), GIVEN_UP_WITHIN)


def test_credentials_are_said_nowhere(places: Places, refused: None) -> None:
    """Not in what was found, nor in why nothing was; the audit log holds every object that ever was."""
    cluster = places.cluster
    kinds = "llmservices,jobs,pods,deployments,controllerrevisions,events"
    said = cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "yaml", "--show-managed-fields")
    assert [value for value in CREDENTIALS if value in said] == []
