"""What docs/cli.md, docs/concepts.md and docs/gitops.md say of `kubectl wait`, held against the real one."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.contract.api import NAMESPACE, RESOURCE, SERVICES, Api
from tests.contract.conftest import Kubectl
from tests.contract.manifests import manifest

pytestmark = pytest.mark.cluster


def condition(kind: str, status: str, reason: str, generation: int) -> Mapping[str, Any]:
    told = {"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": generation}
    return {**told, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def say(api: Api, generation: int, *conditions: Mapping[str, Any]) -> None:
    current = api.get("waited-for")
    status = {"observedGeneration": generation, "conditions": list(conditions)}
    api.http.put(f"{SERVICES}/waited-for/status", json={**current, "status": status}).raise_for_status()


def wait(kubectl: Kubectl, name: str = "waited-for") -> tuple[int, str]:
    done = kubectl("wait", f"{RESOURCE}/{name}", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=2s")
    return done.returncode, done.stderr


def test_it_returns_only_for_the_current_generation(api: Api, kubectl: Kubectl) -> None:
    with api.existing(manifest("waited-for", {})):
        say(api, 1, condition("Ready", "True", "RolledOut", 1))
        assert wait(kubectl) == (0, "")
        changed = api.update(api.get("waited-for"), manifest("waited-for", {"batching.maxNumSeqs": 8}))
        assert changed.json()["metadata"]["generation"] == 2
        code, said = wait(kubectl)
        assert (code, "timed out" in said) == (1, True)
        say(api, 2, condition("Ready", "True", "RolledOut", 2))
        assert wait(kubectl) == (0, "")


def test_it_waits_for_its_whole_time_where_the_service_is_stalled(api: Api, kubectl: Kubectl) -> None:
    with api.existing(manifest("waited-for", {})):
        ready, stalled = (("Ready", "False", "DoesNotFit", 1), ("Stalled", "True", "DoesNotFit", 1))
        say(api, 1, condition(*ready), condition(*stalled))
        code, said = wait(kubectl)
        assert (code, "timed out" in said) == (1, True)


def test_it_fails_at_once_where_there_is_no_service(api: Api, kubectl: Kubectl) -> None:
    code, said = wait(kubectl, "nobody")
    assert code == 1
    assert "NotFound" in said or "not found" in said
