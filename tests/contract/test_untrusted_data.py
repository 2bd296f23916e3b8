"""What the real API server stores unread: one tenant's ControllerRevision, listed beside the others'."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import orjson
import pytest
from kubeloop.transport import lenient

NAMESPACE = "contract-untrusted-data"
REVISIONS = f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions"
# Numbers that no double holds end the request in Kubernetes 1.36: its field manager panics, and nothing is stored.
DATA = {"half of a surrogate pair": '"\\ud800"', "9,000 lists": "[" * 9000 + "]" * 9000}


@pytest.fixture(scope="module", autouse=True)
def namespace(http: httpx.Client) -> Iterator[None]:
    http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
    yield
    http.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.mark.parametrize("case", DATA)
def test_a_list_with_it_is_read(http: httpx.Client, case: str) -> None:
    """orjson alone refuses the list, and the operator would see no revision of any service."""
    number = list(DATA).index(case)
    labels = '{"llmservice.dev/service":"nobody"}'
    body = f'{{"metadata":{{"name":"odd-{number}","labels":{labels}}},"revision":1,"data":{{"x":{DATA[case]}}}}}'
    made = http.post(REVISIONS, content=body, headers={"Content-Type": "application/json"})
    assert made.status_code == 201, made.text[:200]
    http.post(REVISIONS, json={"metadata": {"name": f"fine-{number}"}, "revision": 1, "data": {"x": 1}})
    raw = http.get(REVISIONS).content
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(raw)
    items = {item["metadata"]["name"]: item for item in lenient(raw)["items"]}
    assert items[f"fine-{number}"]["data"] == {"x": 1}
    assert f"odd-{number}" in items
    http.delete(f"{REVISIONS}/odd-{number}")
