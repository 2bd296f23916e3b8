"""kstatus (Flux, Helm) and Argo CD read every state right, by their own code."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support.documents import DOCS, blocks_of
from tests.support.health import SCRIPT, Judged, argocd, judged
from tests.unit.status_states import CASES, UNREPORTED, objects

Json = dict[str, Any]

EXPECTED = {name: (case.kstatus, case.argo) for name, case in CASES.items()} | {
    name: (kstatus, argo) for name, (_, kstatus, argo) in UNREPORTED.items()
}
CUSTOMIZATION = "resource.customizations.health.llmservice.dev_LLMService"


@pytest.fixture(scope="module")
def states() -> dict[str, Json]:
    return objects()


@pytest.fixture(scope="module")
def answers(states: dict[str, Json]) -> dict[str, Judged]:
    return dict(zip(states, judged(states.values()), strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_each_state_is_read_right(answers: dict[str, Judged], name: str) -> None:
    answer = answers[name]
    assert (answer.kstatus.status, answer.argo.status) == EXPECTED[name]


def test_the_failure_is_shown(answers: dict[str, Judged]) -> None:
    failed = answers["a failed rollout"]
    assert failed.argo.message.startswith("KVCacheTooSmall: Too small.")
    assert failed.kstatus.message.startswith("Too small.")


@pytest.mark.full
def test_argo_cd_itself_says_the_same(states: dict[str, Json], answers: dict[str, Judged]) -> None:
    own = dict(zip(states, argocd(states.values()), strict=True))
    assert own == {name: answer.argo for name, answer in answers.items()}


def test_the_page_shows_the_script_that_is_tested() -> None:
    snippets = [yaml.safe_load(block) for block in blocks_of(DOCS / "gitops.md", "yaml")]
    (config,) = [snippet for snippet in snippets if snippet["metadata"]["name"] == "argocd-cm"]
    assert config["data"][CUSTOMIZATION] == SCRIPT.read_text()
