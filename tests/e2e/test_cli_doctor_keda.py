"""`llmservice doctor` where autoscaling is enabled: the activators and KEDA of a real installation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.scaler import KEDA_NAMESPACE
from tests.e2e.test_cli_doctor import doctor, of
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.keda import ACTIVATOR, autoscaling_installed
from tests.support.operator import OPERATOR_NAMESPACE

pytestmark = pytest.mark.autoscaling
VERSION = "app.kubernetes.io/version"


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[None]:
    with autoscaling_installed(cluster):
        yield


@pytest.mark.usefixtures("installed")
def test_keda_and_the_activators_are_found_and_an_old_keda_is_told(cluster: Cluster) -> None:
    def both_ready() -> JSON | None:
        """Others may restart them."""
        _, found, _ = doctor(cluster)
        levels = [each["level"] for check in ("KEDA", "activator") for each in of(found, check)]
        return found if {*levels} == {"ok"} else None

    found = eventually("KEDA and the activators are ok", both_ready, 60)
    assert f"{KEDA_NAMESPACE}/keda-operator: 1/1 replicas ready" in str(of(found, "KEDA"))
    assert f"{OPERATOR_NAMESPACE}/{ACTIVATOR}: " in str(of(found, "activator"))
    label = ("label", "deployment/keda-operator", "-n", KEDA_NAMESPACE, "--overwrite")
    before = cluster.must_get("deployments", KEDA_NAMESPACE, "keda-operator")["metadata"]["labels"].get(VERSION)

    def warned() -> JSON | None:
        """Others may install KEDA anew meanwhile, with its own label."""
        cluster.kubectl(*label, f"{VERSION}=2.20.1")
        _, found, _ = doctor(cluster)
        return next((each for each in of(found, "KEDA") if each["level"] == "warning"), None)

    try:
        old = eventually("a warning", warned, 60)
    finally:
        cluster.kubectl(*label, f"{VERSION}={before}" if before else f"{VERSION}-")
    assert (old["evidence"], old["remedy"]) == ("KEDA 2.20 is older than 2.21", "upgrade KEDA to 2.21 or later")
