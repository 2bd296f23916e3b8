"""Reads `/state` of a pod's supervisor."""

from __future__ import annotations

from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import STATE_PATH, OtherVersion, State

from llmservice_operator.kube.pod_port import PodPort, Unreadable


class StateReader(PodPort):
    """Reads states over connections to pods; use it as a context manager."""

    async def read(self, address: str) -> State:
        """GET /state of the pod at an IP address. Unreadable without a valid answer."""
        return _parsed(await self.get(address, STATE_PATH), self.port)


def _parsed(body: bytes, port: int) -> State:
    """It goes into a status and metrics: `State.read` refuses invalid values."""
    try:
        return State.read(body.decode())
    except UnicodeDecodeError:
        why = "it is not valid Unicode"
    except OtherVersion:
        raise Unreadable("its supervisor is of another version") from None
    except Refused as refused:
        why = str(refused)
    raise Unreadable(f"what its port {port} answers is no state: {why}", is_invalid=True)
