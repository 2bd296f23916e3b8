"""The local cluster's API server, with the CRD that the models make now."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.api import CRDS, RESOURCE, SERVICES, Api, connect, contract_crd

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The cluster that KUBECONFIG names, else this clone's own."""
    path = Path(os.environ.get("KUBECONFIG") or ROOT / ".cluster" / "admin.kubeconfig")
    if not path.is_file():
        pytest.fail(f"no cluster: {path} does not exist; start one with `make cluster`")
    return path


@pytest.fixture(scope="session")
def http(kubeconfig: Path) -> Iterator[httpx.Client]:
    with connect(kubeconfig) as client:
        yield client


@pytest.fixture(scope="session")
def api(http: httpx.Client) -> Iterator[Api]:
    """LLMServices under a group of the tests' own."""
    remove_crd(http)
    http.post(CRDS, json=contract_crd(), params={"fieldValidation": "Strict"}).raise_for_status()
    wait_until_served(http)
    yield Api(http)
    remove_crd(http)


def wait_until_served(http: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while http.get(SERVICES).status_code != httpx.codes.OK:
        assert time.monotonic() < deadline, "the API server does not serve the CRD"
        time.sleep(0.1)


def remove_crd(http: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while http.delete(f"{CRDS}/{RESOURCE}").status_code != httpx.codes.NOT_FOUND:
        assert time.monotonic() < deadline, "the CRD of an earlier run does not go away"
        time.sleep(0.1)
