"""The local cluster's API server, with the CRD that the models make now."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from llmservice_api.constants import PLURAL

from localcluster.builds import GO_FOLDER
from localcluster.paths import ClusterPaths, cache_root
from localcluster.programs import build_flags
from localcluster.progress import Progress
from localcluster.toolchain import go_command
from tests.contract.api import CRDS, GROUP, RESOURCE, SERVICES, Api, connect, contract_crd
from tests.support.patience import PATIENCE

Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Their CRD has a group of its own, and they need no operator."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.contract)


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The cluster that KUBECONFIG names, else this clone's own."""
    path = Path(os.environ.get("KUBECONFIG") or ClusterPaths.of_this_clone().kubeconfig)
    if not path.is_file():
        pytest.fail(f"no cluster: {path} does not exist; start one with `make cluster`")
    return path


@pytest.fixture(scope="session")
def http(kubeconfig: Path) -> Iterator[httpx.Client]:
    with connect(kubeconfig) as client:
        yield client


@pytest.fixture(scope="session")
def kubectl_program() -> str:
    """The cluster's kubectl, else the machine's."""
    built = ClusterPaths.of_this_clone().bin / "kubectl"
    return str(built) if built.exists() else "kubectl"


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path, kubectl_program: str) -> Kubectl:
    """Its output is kept and its status is the test's affair."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [kubectl_program, f"--kubeconfig={kubeconfig}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def api(http: httpx.Client) -> Iterator[Api]:
    """LLMServices under a group of the tests' own."""
    remove_crd(http)
    http.post(CRDS, json=contract_crd(), params={"fieldValidation": "Strict"}).raise_for_status()
    wait_until_served(http)
    yield Api(http)
    remove_crd(http)


@pytest.fixture(scope="session")
def celcost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that asks the API server's own code what a rule costs; the Go cache of the cluster makes it quick."""
    program = tmp_path_factory.mktemp("celcost") / "celcost"
    go = go_command(cache_root(os.environ, Path.home()), Progress())
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    build = [go, "build", *build_flags(), "-o", str(program), "./cmd/celcost"]
    subprocess.run(build, cwd=GO_FOLDER, env=environment, check=True)
    return program


def wait_until_served(http: httpx.Client) -> None:
    """And until the list of all groups has it, by which kubectl finds resources: it is made anew a moment later."""
    deadline = time.monotonic() + PATIENCE
    while http.get(SERVICES).status_code != httpx.codes.OK or not _is_listed(http):
        assert time.monotonic() < deadline, "the API server does not serve the CRD"
        time.sleep(0.1)


def _is_listed(http: httpx.Client) -> bool:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = http.get("/apis", headers={"Accept": accept}).raise_for_status().json()["items"]
    return any(
        resource["resource"] == PLURAL
        for group in groups
        if group["metadata"]["name"] == GROUP
        for version in group["versions"]
        for resource in version["resources"]
    )


def remove_crd(http: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while http.delete(f"{CRDS}/{RESOURCE}").status_code != httpx.codes.NOT_FOUND:
        assert time.monotonic() < deadline, "the CRD of an earlier run does not go away"
        time.sleep(0.1)
