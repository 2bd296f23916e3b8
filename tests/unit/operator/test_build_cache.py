"""Options of the fetch container for spec.model.cache, as its own command line parses them."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_fetch import __main__ as command_line
from llmservice_fetch import uses
from llmservice_operator.manifests.pod_template import fetch_options
from llmservice_operator.manifests.revision import KEPT

from tests.unit.decide_world import an_llmservice, spec

CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "scratch space of the pod": ({}, ()),
    "a claim": ({"claimName": "models"}, ("--service=team-a/x",)),
    "a claim of ours": ({"size": "1Gi"}, ("--service=team-a/x",)),
    "hashes": ({"size": "1Gi", "verify": "Hash"}, ("--service=team-a/x", "--verify=hash")),
    "sizes": ({"size": "1Gi", "verify": "Size"}, ("--service=team-a/x", "--verify=size")),
    "a week": ({"size": "1Gi", "pruneAfterHours": 168}, ("--service=team-a/x", "--prune-after-hours=168")),
}


@pytest.mark.parametrize("case", CASES)
def test_options_of_the_cache(case: str) -> None:
    cache, options = CASES[case]
    model = {"uri": "hf://a/b", **({"cache": cache} if cache else {})}
    given = fetch_options(LLMService.from_object(an_llmservice(spec(model=model))))
    assert given == options
    parsed = command_line.parser().parse_args(["fetch", "--fetch=model=hf://a/b", *given])
    assert parsed.prune_after_hours == cache.get("pruneAfterHours", uses.DEFAULT_HOURS)
    assert parsed.verify == cache.get("verify", "Size").lower()


@pytest.mark.parametrize("hours", ["0", "-1", "87601", "x"])
def test_hours_are_bounded(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.parser().parse_args(["fetch", "--fetch=model=hf://a/b", f"--prune-after-hours={hours}"])
    assert "--prune-after-hours" in capsys.readouterr().err


def test_a_cache_keeps_as_many_uris_as_templates_are_recorded() -> None:
    assert uses.KEPT_URIS >= KEPT
