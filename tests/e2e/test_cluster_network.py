"""What the local cluster's network does with addresses that nobody has."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.support.client import ClientPod
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.parallel

NO_SERVICE = "10.96.77.77"
TRY = """
import json, socket, sys
try:
    socket.create_connection((sys.argv[1], 80), 60).close()
    print(json.dumps("connected"))
except OSError as error:
    print(json.dumps(type(error).__name__))
"""


def test_a_connection_to_an_address_of_no_service_is_refused(cluster: Cluster, namespace: str) -> None:
    """And does not leave the machine, where somebody else may answer."""
    with pytest.raises(httpx.ConnectError, match="refused"):
        httpx.get(f"http://{NO_SERVICE}/", timeout=PATIENCE, trust_env=False)
    ClientPod.start(cluster, namespace)
    said = cluster.kubectl("exec", "client", "-n", namespace, "--", "python", "-c", TRY, NO_SERVICE)
    assert json.loads(said) == "ConnectionRefusedError"
