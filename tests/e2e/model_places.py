"""A hub and a bucket that the pods of one namespace reach, and the Secrets with their credentials."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.tinymodel.cache import cached_model
from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.object_store import ROOT, ObjectStore, object_store

# The node's own address on the pods' network: what listens there is reached from pods.
BRIDGE = "10.244.0.1"
TOKEN, REVOKED, WRONG_KEY = "hf_tokenOfTheTeamThatNobodyMayRead", "hf_revokedLongAgo", "of/somebody+else"
CREDENTIALS = (TOKEN, REVOKED, WRONG_KEY, ROOT.secret_key, ROOT.access_key)
"""None of these may appear in what Kubernetes shows."""
_SECRETS: Mapping[str, Mapping[str, str]] = {
    "hub-token": {"token": TOKEN},
    "revoked": {"token": REVOKED},
    "bucket-keys": {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": ROOT.secret_key},
    "wrong-keys": {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": WRONG_KEY},
}


@dataclass(frozen=True)
class Places:
    """Where the tiny model lies: `team/gated` and `team/open` of the hub, `s3://models/team/tiny`."""

    cluster: Cluster
    hub: Hub
    store: ObjectStore

    def at_the_hub(self, repo: str, *, secret: str | None = None, cache: str | None = None) -> JSON:
        """The parts of a spec that name a repository."""
        model: JSON = {"uri": f"hf://{repo}"}
        if secret:
            model["hfTokenSecretRef"] = {"name": secret, "key": "token"}
        if cache:
            model["cache"] = {"claimName": cache}
        return {"model": model, "runtime": {"env": [{"name": "HF_ENDPOINT", "value": self.hub.url}]}}

    def in_the_bucket(self, keys: str = "bucket-keys") -> JSON:
        """The parts of a spec that name the bucket."""
        s3 = {"endpoint": self.store.url, "credentialsSecretRef": {"name": keys}}
        return {"model": {"uri": "s3://models/team/tiny", "s3": s3}}


def secret(name: str, values: Mapping[str, str]) -> JSON:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


@contextmanager
def model_places(cluster: Cluster, namespace: str, folder: Path, **repos: Mapping[str, bytes]) -> Iterator[Places]:
    """The namespace is made here; `repos` are further public repositories `team/NAME`."""
    model = cached_model(print)
    files = Repo.of_folder(model).files
    known = {"team/gated": Repo(dict(files), gated=True), "team/open": Repo(dict(files))}
    hub = Hub(known | {f"team/{name}": Repo(dict(more)) for name, more in repos.items()}, {TOKEN: {"team/gated"}})
    with ExitStack() as stack:
        stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
        store = stack.enter_context(object_store(folder, BRIDGE))
        store.make_bucket("models")
        store.put_folder("models", "team/tiny", model)
        stack.enter_context(own_namespace(cluster, namespace))
        cluster.apply_all([secret(name, values) for name, values in _SECRETS.items()], namespace)
        yield Places(cluster, hub, store)
