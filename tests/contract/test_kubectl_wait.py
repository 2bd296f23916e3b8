"""What docs/cli/wait.md, docs/concepts.md and docs/gitops.md say of `kubectl wait`, held against the real one."""

import pytest

from tests.contract.api import NAMESPACE, RESOURCE, SERVICES, Api
from tests.contract.conftest import Kubectl
from tests.contract.manifests import manifest

pytestmark = pytest.mark.cluster


def report(api: Api, generation: int, reason: str, **conditions: str) -> None:
    common = {"reason": reason, "message": "", "observedGeneration": generation}
    common |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    made = [{"type": kind, "status": status, **common} for kind, status in conditions.items()]
    status = {"observedGeneration": generation, "conditions": made}
    current = api.get("waited-for")
    api.http.put(f"{SERVICES}/waited-for/status", json={**current, "status": status}).raise_for_status()


def wait(kubectl: Kubectl, name: str = "waited-for") -> tuple[int, str]:
    done = kubectl("wait", f"{RESOURCE}/{name}", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=2s")
    return done.returncode, done.stderr


def test_it_returns_only_for_the_current_generation(api: Api, kubectl: Kubectl) -> None:
    with api.existing(manifest("waited-for", {})):
        report(api, 1, "RolledOut", Ready="True")
        assert wait(kubectl) == (0, "")
        changed = api.update(api.get("waited-for"), manifest("waited-for", {"batching.maxNumSeqs": 8}))
        assert changed.json()["metadata"]["generation"] == 2
        code, printed = wait(kubectl)
        assert (code, "timed out" in printed) == (1, True)
        report(api, 2, "RolledOut", Ready="True")
        assert wait(kubectl) == (0, "")


def test_it_waits_for_its_whole_time_where_the_service_is_stalled(api: Api, kubectl: Kubectl) -> None:
    with api.existing(manifest("waited-for", {})):
        report(api, 1, "DoesNotFit", Ready="False", Stalled="True")
        code, printed = wait(kubectl)
        assert (code, "timed out" in printed) == (1, True)


def test_it_fails_at_once_where_there_is_no_service(api: Api, kubectl: Kubectl) -> None:
    code, printed = wait(kubectl, "nobody")
    assert code == 1
    assert "NotFound" in printed or "not found" in printed
