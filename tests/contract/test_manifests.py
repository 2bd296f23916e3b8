"""The API server refuses every bad manifest at the right field, in words that help, and takes every good one whole.

`llmservice plan -f` refuses the same fields, also where several changes are combined.
"""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from llmservice_api import constants
from llmservice_api.service import parse_spec
from llmservice_cli.admission.check import problems

from tests.contract.api import API_VERSION, DRY_RUN, Api, Refusal
from tests.contract.conftest import Kubectl
from tests.contract.manifests import BAD, GOOD, Case, manifest

pytestmark = pytest.mark.cluster

CREATED = [bad for bad in BAD if not bad.before]
UPDATED = [bad for bad in BAD if bad.before]
CHANGES = {case.id: case for case in (*CREATED, *GOOD) if case.change}
COMBINATIONS = 200


def says(refusal: Refusal, bad: Case) -> bool:
    if not bad.field:
        return all(words in refusal.message for words in bad.says)
    return any(field == bad.field and all(words in text for words in bad.says) for field, text in refusal.causes)


def refused_by_the_server(answer: httpx.Response) -> set[str]:
    """The fields that it refuses; empty where it takes the manifest."""
    if answer.status_code == 201:
        return set()
    assert answer.status_code in (400, 422), answer.text
    refusal = Refusal.of(answer)
    # /scale reports its own path with a dot in front.
    fields = {field.removeprefix(".") for field, _ in refusal.causes if field and field != "<nil>"}
    return fields or set(re.findall(r'unknown field "([^"]+)"', refusal.message))


def refused_by_the_command(written: Mapping[str, Any]) -> set[str]:
    whole = {"apiVersion": constants.API_VERSION, "kind": constants.KIND, **written}
    return {problem.field for problem in problems(whole)}


@pytest.mark.parametrize("bad", CREATED, ids=[bad.id for bad in CREATED])
def test_refused(api: Api, bad: Case) -> None:
    written = manifest(bad.name, bad.change)
    answer = api.try_create(written)
    refused = refused_by_the_server(answer)
    assert says(Refusal.of(answer), bad), answer.text
    assert len(refused) == 1, f"one wrong thing, but {refused}"
    assert refused_by_the_command(written) == refused


@pytest.mark.parametrize("good", GOOD, ids=[good.id for good in GOOD])
def test_accepted(api: Api, good: Case) -> None:
    written = manifest(good.name, good.change)
    answer = api.try_create(written)
    assert answer.status_code == 201, answer.text
    stored = answer.json()["spec"]
    assert stored == {**written["spec"], "scaling": {"replicas": 1, **written["spec"].get("scaling", {})}}
    assert parse_spec(stored).model.uri == written["spec"]["model"]["uri"]
    assert refused_by_the_command(written) == set()


@pytest.mark.parametrize("bad", UPDATED, ids=[bad.id for bad in UPDATED])
def test_change_refused(api: Api, bad: Case) -> None:
    with api.existing(manifest(bad.name, bad.before)) as current:
        answer = api.update(current, manifest(bad.name, bad.change), **DRY_RUN)
        same = api.update(current, manifest(bad.name, bad.before), **DRY_RUN)
    assert answer.status_code == 422, answer.text
    assert says(Refusal.of(answer), bad), answer.text
    assert same.status_code == 200, same.text


@pytest.mark.full
@pytest.mark.parametrize("seed", range(COMBINATIONS))
def test_several_changes(api: Api, seed: int) -> None:
    """Two or three changes of the tables in one manifest; of two for one field the first counts."""
    names = random.Random(seed).sample(sorted(CHANGES), 2 + seed % 2)
    change: dict[str, Any] = {}
    for path, value in (pair for name in names for pair in CHANGES[name].change.items()):
        if not any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in change):
            change[path] = value
    written = manifest("good", change)
    server, command = refused_by_the_server(api.try_create(written)), refused_by_the_command(written)
    # The API server names unknown fields alone, before it validates; the command names all that is wrong at once.
    assert bool(command) == bool(server), names
    assert server <= command, names
    unknown = any(CHANGES[name].says and not CHANGES[name].field for name in names)
    assert len(server) == len(command) or unknown, names


def test_kubectl_shows_it(api: Api, kubectl: Kubectl, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    bad = manifest("good", {"batching": {"maxNumSeqs": 256, "maxNumBatchedTokens": 128}})
    file.write_text(yaml.safe_dump({**bad, "apiVersion": API_VERSION, "kind": "LLMService"}))
    done = kubectl("apply", "--dry-run=server", "-f", str(file))
    assert done.returncode == 1
    assert "spec.batching.maxNumBatchedTokens" in done.stderr
    assert "raise maxNumBatchedTokens or lower maxNumSeqs" in done.stderr
