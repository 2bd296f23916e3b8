"""`llmservice advise routing` as a team runs it: beside its clients."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from tests.support.cluster import JSON, Cluster
from tests.support.patience import PATIENCE, at_most


def advice_beside(
    cluster: Cluster, namespace: str, name: str, seconds: int, act: Callable[[], object]
) -> tuple[int, JSON]:
    """Its exit code and JSON, of a watch of so many seconds in which `act` ran."""
    command = (sys.executable, "-m", "llmservice_cli", "advise", "routing", name, "-n", namespace)
    with subprocess.Popen(
        (*command, "--for", f"{seconds}s", "-o", "json"),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stderr is not None
        said = watching.stderr.readline()
        assert "watching" in said, said
        began = time.monotonic()
        act()
        assert time.monotonic() - began < seconds - 15, "the requests were sent while it watched"
        out, err = watching.communicate(timeout=at_most(PATIENCE))
    assert out, err
    return watching.returncode, json.loads(out)
