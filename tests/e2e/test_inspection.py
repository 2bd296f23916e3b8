"""A model is looked at where it lies before there is any pod for it: what was found, what was not touched for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from tests.e2e.conftest import make_namespace
from tests.e2e.test_model_sources import BRIDGE, secret
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.measured import Record
from tests.support.models import claim_folder, release_folder
from tests.support.object_store import ROOT, ObjectStore, object_store
from tests.support.services import idle
from tests.support.weights import header_bytes

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-inspection"
TOKEN = "hf_tokenThatOnlyTheKubeletHandsOn"
REVOKED = "hf_revokedSomeTimeAgo"
WRONG_KEY = "of/somebody+else"
CLAIM = "inspected"
WEIGHTS = "model.safetensors"
KNOWN_WITHIN = 60.0
"""The Job's pod starts, asks a few questions and ends."""
GIVEN_UP_WITHIN = 90.0


@dataclass
class Places:
    """Where the model lies."""

    cluster: Cluster
    hub: Hub
    store: ObjectStore
    model: Path

    def at_the_hub(self, repo: str, token: str | None = None) -> JSON:
        """The parts of a spec that name a repository."""
        model: JSON = {"uri": f"hf://{repo}"}
        if token is not None:
            model["hfTokenSecretRef"] = {"name": token, "key": "token"}
        return {"model": model, "runtime": {"env": [{"name": "HF_ENDPOINT", "value": self.hub.url}]}}

    def in_the_bucket(self, keys: str = "bucket-keys") -> JSON:
        """The parts of a spec that name the bucket."""
        s3 = {"endpoint": self.store.url, "credentialsSecretRef": {"name": keys}}
        return {"model": {"uri": "s3://models/team/tiny", "s3": s3}}

    def told(self, name: str) -> JSON | None:
        """status.model once it is there."""
        found: JSON = self.cluster.must_get("llmservices", NAMESPACE, name).get("status", {})
        model: JSON | None = found.get("model")
        return model

    def commit(self, repo: str) -> str:
        return self.hub.repos[repo].commit


@pytest.fixture(scope="module")
def places(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    model = cached_model(print)
    files = Repo.of_folder(model).files
    hub = Hub({"team/gated": Repo(dict(files), gated=True), "team/open": Repo(dict(files))}, {TOKEN: {"team/gated"}})
    folder = ClusterPaths.of_this_clone().models / "inspected"
    with ExitStack() as stack:
        stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
        store = stack.enter_context(object_store(tmp_path_factory.mktemp("s3"), BRIDGE))
        store.make_bucket("models")
        store.put_folder("models", "team/tiny", model)
        make_namespace(cluster, NAMESPACE)
        stack.callback(release_folder, cluster, NAMESPACE, CLAIM)
        stack.callback(cluster.kubectl, "delete", "namespace", NAMESPACE, "--wait=false")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(model, folder / "tiny")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        claim_folder(cluster, NAMESPACE, CLAIM, folder)
        secrets: Mapping[str, Mapping[str, str]] = {
            "hub-token": {"token": TOKEN},
            "revoked": {"token": REVOKED},
            "bucket-keys": {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": ROOT.secret_key},
            "wrong-keys": {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": WRONG_KEY},
        }
        for name, values in secrets.items():
            cluster.apply(secret(name, values), NAMESPACE)
        yield Places(cluster, hub, store, model)


def asked_for(places: Places, name: str, **spec: Any) -> JSON:
    """What the status tells of the model of a service that makes no pods of its own."""
    places.cluster.apply(idle(name, batching={"maxModelLen": None}, **spec), NAMESPACE)
    return eventually(f"what is known of the model of {name}", lambda: places.told(name), GIVEN_UP_WITHIN)


def tensor_bytes(model: Path) -> int:
    """All that stands behind the header of the only file of weights."""
    weights = (model / WEIGHTS).read_bytes()
    return len(weights) - header_bytes(weights)


def assert_known(places: Places, name: str, told: JSON) -> None:
    """Everything is there, and nothing is left behind."""
    assert "failure" not in told, told
    parts = {part: size for part, size in told["tensors"].items() if part not in ("parameters", "dtype")}
    assert sum(parts.values()) == tensor_bytes(places.model)
    assert parts["attention"] > 0 < parts["feedForward"]
    full = json.loads((places.model / "config.json").read_text())
    kept = json.loads(told["config"])
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert kept[key] == full[key]
    fits = places.cluster.wait_condition(NAMESPACE, name, "Fits", "True", timeout=KNOWN_WITHIN)
    assert fits["reason"] == "Fits"
    assert_no_job_left(places.cluster, name)


def assert_no_job_left(cluster: Cluster, name: str) -> None:
    def none_left() -> bool:
        jobs = cluster.list("jobs", NAMESPACE, f"llmservice.dev/service={name}")
        return not jobs and not cluster.list("pods", NAMESPACE, f"llmservice.dev/inspects={name}")

    eventually("the Job and its pod to go", none_left, 30)


def test_a_gated_repository_and_no_weights(places: Places, record: Record) -> None:
    places.hub.sent.clear()
    told = asked_for(places, "gated", **places.at_the_hub("team/gated", token="hub-token"))
    assert_known(places, "gated", told)
    assert told["revision"] == places.commit("team/gated")
    weights = (places.model / WEIGHTS).read_bytes()
    assert places.hub.sent == {WEIGHTS: header_bytes(weights)}
    record(header=header_bytes(weights), weights=len(weights), message=len(told["config"]))


def test_an_edit_of_something_else_does_not_look_again(places: Places) -> None:
    told = asked_for(places, "edited", **places.at_the_hub("team/open"))
    before = len(places.hub.asked)
    places.cluster.patch("llmservices", NAMESPACE, "edited", {"spec": {"batching": {"maxNumSeqs": 7}}})

    def planned_anew() -> bool:
        service = places.cluster.must_get("llmservices", NAMESPACE, "edited")
        observed: int = service["status"]["observedGeneration"]
        generation: int = service["metadata"]["generation"]
        return observed == generation

    eventually("the edit to be seen", planned_anew, 30)
    places.cluster.wait_condition(NAMESPACE, "edited", "Fits", "True", timeout=KNOWN_WITHIN)
    assert len(places.hub.asked) == before
    assert places.told("edited") == told


def test_another_revision_is_looked_at(places: Places) -> None:
    told = asked_for(places, "moved", **places.at_the_hub("team/open"))
    before = len(places.hub.asked)
    pinned = f"hf://team/open@{places.commit('team/open')}"
    places.cluster.patch("llmservices", NAMESPACE, "moved", {"spec": {"model": {"uri": pinned}}})
    moved = eventually(
        "another look",
        lambda: found if (found := places.told("moved")) and found["inspection"] != told["inspection"] else None,
        KNOWN_WITHIN,
    )
    assert moved["revision"] == told["revision"]
    assert len(places.hub.asked) > before
    assert_no_job_left(places.cluster, "moved")


def test_a_bucket(places: Places) -> None:
    told = asked_for(places, "bucket", **places.in_the_bucket())
    assert_known(places, "bucket", told)
    assert len(told["revision"]) == 40


def test_a_claim(places: Places) -> None:
    told = asked_for(places, "claim", model={"uri": f"pvc://{CLAIM}/tiny"})
    assert_known(places, "claim", told)
    assert "revision" not in told


REFUSED: dict[str, tuple[str, str]] = {
    "no-repository": ("has no model team/none", "spec.model.uri"),
    "no-revision": ("no revision 'v9'", "behind the @"),
    "no-token": ("is gated", "spec.model.hfTokenSecretRef"),
    "revoked-token": ("does not accept the token", "spec.model.hfTokenSecretRef"),
    "wrong-keys": ("does not accept the credentials", "spec.model.s3.credentialsSecretRef"),
    "no-folder": ("There is no /llmservice/source/none", "relative to the claim's root"),
    "no-secret": ('secret "nobody-made-it" not found', "spec.model.architecture"),
    "no-claim": ('persistentvolumeclaim "nobody-made-it" not found', "spec.model.architecture"),
}


@pytest.fixture(scope="module")
def refused(places: Places) -> None:
    """All at once."""
    specs = {
        "no-repository": places.at_the_hub("team/none"),
        "no-revision": places.at_the_hub("team/open@v9"),
        "no-token": places.at_the_hub("team/gated"),
        "revoked-token": places.at_the_hub("team/gated", token="revoked"),
        "wrong-keys": places.in_the_bucket("wrong-keys"),
        "no-folder": {"model": {"uri": f"pvc://{CLAIM}/none"}},
        "no-secret": places.at_the_hub("team/gated", token="nobody-made-it"),
        "no-claim": {"model": {"uri": "pvc://nobody-made-it/x"}},
    }
    assert set(specs) == set(REFUSED)
    for name, spec in specs.items():
        places.cluster.apply(idle(name, batching={"maxModelLen": None}, **spec), NAMESPACE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_looked_at_is_said_and_stops_nothing(cluster: Cluster, refused: None, name: str) -> None:
    words, remedy = REFUSED[name]

    def is_told() -> bool:
        fits = cluster.condition(NAMESPACE, name, "Fits") or {"message": ""}
        return fits.get("status") == "Unknown" and words in fits["message"] and remedy in fits["message"]

    eventually("the reason and what to do", is_told, GIVEN_UP_WITHIN)
    eventually("the Deployment all the same", lambda: cluster.get("deployments", NAMESPACE, name), GIVEN_UP_WITHIN)


def test_credentials_are_said_nowhere(places: Places, refused: None) -> None:
    """Not in what was found, nor in why nothing was; the audit log holds every object that ever was."""
    cluster = places.cluster
    kinds = "llmservices,jobs,pods,deployments,controllerrevisions,events"
    said = cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "yaml", "--show-managed-fields")
    for value in (TOKEN, REVOKED, WRONG_KEY, ROOT.secret_key, ROOT.access_key):
        assert value not in said
