"""The commands' requests, and kubeconfigs as users have them, against a real API server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kubeloop.credentials import load
from kubeloop.errors import Invalid
from kubeloop.resources import Resource
from llmservice_api import constants
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.errors import CliError
from llmservice_cli.options import Scope

from tests.contract.api import GROUP, NAMESPACE, Api
from tests.contract.manifests import manifest
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.cluster

SERVICE = Resource(GROUP, constants.VERSION, constants.PLURAL, constants.KIND)
NAME = "asked-for"


@pytest.fixture
def there(api: Api) -> Iterator[dict[str, Any]]:
    with api.existing(manifest(NAME, {})) as created:
        yield created


BY_NAME = {"fieldSelector": f"metadata.name={NAME}"}


def options(kubeconfig: Path) -> Scope:
    return Scope(kubeconfig=str(kubeconfig), context=None, namespace=NAMESPACE)


@pytest.fixture
async def connection(kubeconfig: Path) -> AsyncIterator[Connection]:
    async with connect(options(kubeconfig)) as made:
        yield made


async def test_reads(connection: Connection, there: dict[str, Any]) -> None:
    assert await connection.kube.get(SERVICE, NAMESPACE, "nobody") is None
    found = await connection.kube.get(SERVICE, NAMESPACE, NAME)
    assert found is not None
    assert found["metadata"]["uid"] == there["metadata"]["uid"]
    assert NAME in [item["metadata"]["name"] for item in await connection.kube.list_all(SERVICE, None)]


async def test_a_merge_patch_changes_what_it_names_and_is_seen_by_a_watch(
    connection: Connection, there: dict[str, Any]
) -> None:
    listed = await connection.kube.list_selected(SERVICE, NAMESPACE, BY_NAME)
    assert [item["metadata"]["uid"] for item in listed["items"]] == [there["metadata"]["uid"]]
    since = listed["metadata"]["resourceVersion"]
    await connection.kube.merge(SERVICE, NAMESPACE, NAME, {"metadata": {"annotations": {"a": "b"}}})
    events = connection.kube.selected_events(SERVICE, NAMESPACE, BY_NAME, since=since, seconds=10, silence=30)
    async with asyncio.timeout(PATIENCE):
        event = await anext(events)
    await events.aclose()
    assert (event["type"], event["object"]["metadata"]["annotations"]) == ("MODIFIED", {"a": "b"})
    with pytest.raises(Invalid, match="unknown field"):
        await connection.kube.merge(SERVICE, NAMESPACE, NAME, {"spec": {"noSuchField": 1}})


async def test_a_watch_ends_when_it_was_asked_to(connection: Connection, there: dict[str, Any]) -> None:
    since = there["metadata"]["resourceVersion"]
    watched = connection.kube.selected_events(SERVICE, NAMESPACE, BY_NAME, since=since, seconds=1, silence=30)
    async with asyncio.timeout(PATIENCE):
        assert "ERROR" not in [event["type"] async for event in watched]


Login = Callable[[Path, str], dict[str, Any]]


def by_token(folder: Path, token: str) -> dict[str, Any]:
    return {"token": token}


def by_file(folder: Path, token: str) -> dict[str, Any]:
    (folder / "token").write_text(f"{token}\n")
    return {"tokenFile": "token"}


def by_program(folder: Path, token: str) -> dict[str, Any]:
    script = f"print({json.dumps({'status': {'token': token}})!r})"
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": ["-c", script]}}


@pytest.fixture(scope="session")
def token(http: httpx.Client) -> str:
    """Of a service account with no rights."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    made: str = http.post(path, json=request).raise_for_status().json()["status"]["token"]
    return made


@pytest.mark.parametrize("login", [by_token, by_file, by_program])
async def test_the_api_server_knows_who_asks(login: Login, kubeconfig: Path, token: str, tmp_path: Path) -> None:
    admin = await load(kubeconfig=str(kubeconfig))
    (tmp_path / "ca.crt").write_bytes(admin.ca or b"")
    cluster = {"server": admin.server, "certificate-authority": "ca.crt", "tls-server-name": "kubernetes"}
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": login(tmp_path, token)}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    with pytest.raises(CliError, match=f"system:serviceaccount:{NAMESPACE}:default") as caught:
        async with connect(options(tmp_path / "config")) as made:
            await made.kube.get(SERVICE, NAMESPACE, NAME)
    assert f"grant it: get {SERVICE.full_name}" in str(caught.value)
