"""How many replicas are left when a manifest stops stating them, as docs/serving/scaling.md says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.constants import KIND
from llmservice_api.service import stated_by

from tests.contract.api import API_VERSION, NAMESPACE, RESOURCE, SERVICES, Api
from tests.contract.conftest import Kubectl
from tests.contract.manifests import manifest

pytestmark = pytest.mark.cluster

FIXED, AUTOSCALED = {"replicas": 3}, {"autoscaling": {"maxReplicas": 8}}
SERVER_SIDE = ("apply", "--server-side", "--field-manager=gitops")
Run = Callable[..., None]


@pytest.fixture
def run(kubectl: Kubectl, api: Api, tmp_path: Path) -> Any:
    """kubectl, with the manifest of this `scaling` where there is one."""

    def run(*arguments: str, scaling: Any = None) -> None:
        if scaling is not None:
            written = manifest("handed-over", {"scaling": scaling})
            (tmp_path / "manifest.json").write_text(json.dumps({**written, "apiVersion": API_VERSION, "kind": KIND}))
            arguments = (*arguments, "-f", str(tmp_path / "manifest.json"))
        done = kubectl(*arguments, "-n", NAMESPACE)
        assert done.returncode == 0, done.stderr

    yield run
    api.http.delete(f"{SERVICES}/handed-over")


@pytest.mark.parametrize(
    ("scaled_to", "left"),
    [
        pytest.param((), 1, id="not scaled: the default"),
        pytest.param((3,), 1, id="to the same number: nobody else owns it"),
        pytest.param((4,), 4, id="to another"),
        pytest.param((4, 3), 3, id="to another, and back"),
    ],
)
def test_of_a_manifest_that_was_applied_server_side(api: Api, run: Run, scaled_to: tuple[int, ...], left: int) -> None:
    run(*SERVER_SIDE, scaling=FIXED)
    for number in scaled_to:
        run("scale", f"{RESOURCE}/handed-over", f"--replicas={number}")
    run(*SERVER_SIDE, scaling=AUTOSCALED)
    stored = api.get("handed-over")
    assert stored["spec"]["scaling"] == {**AUTOSCALED, "replicas": left}
    assert stated_by(stored["metadata"]) is None


@pytest.mark.parametrize(
    ("is_recorded", "left"),
    [pytest.param(False, 1, id="scaling does not help"), pytest.param(True, 3, id="the record is replaced first")],
)
def test_of_a_manifest_that_kubectl_apply_recorded(api: Api, run: Run, is_recorded: bool, left: int) -> None:
    run("apply", scaling=FIXED)
    if is_recorded:
        run("apply", "set-last-applied", scaling=AUTOSCALED)
    else:
        run("scale", f"{RESOURCE}/handed-over", "--replicas=4")
    run("apply", scaling=AUTOSCALED)
    stored = api.get("handed-over")
    assert stored["spec"]["scaling"] == {**AUTOSCALED, "replicas": left}
    assert stated_by(stored["metadata"]) is None
