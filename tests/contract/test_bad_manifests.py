"""Every bad manifest is refused by the API server itself, at the right field, in words that help."""

from pathlib import Path

import pytest
import yaml

from tests.contract.api import API_VERSION, DRY_RUN, Api, Refusal
from tests.contract.bad_manifests import BAD
from tests.contract.conftest import Kubectl
from tests.contract.manifests import Bad, manifest

pytestmark = pytest.mark.cluster

CREATED = [bad for bad in BAD if not bad.before]
UPDATED = [bad for bad in BAD if bad.before]


def says(refusal: Refusal, bad: Bad) -> bool:
    if not bad.field:
        return all(words in refusal.message for words in bad.says)
    return any(field == bad.field and all(words in text for words in bad.says) for field, text in refusal.causes)


def test_the_table_is_long_enough_and_has_no_name_twice() -> None:
    assert len(BAD) >= 60
    assert len({bad.id for bad in BAD}) == len(BAD)


def test_what_the_table_changes_is_good(api: Api) -> None:
    answer = api.try_create(manifest("good", {}))
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("bad", CREATED, ids=[bad.id for bad in CREATED])
def test_refused(api: Api, bad: Bad) -> None:
    answer = api.try_create(manifest(bad.name, bad.change))
    assert answer.status_code in (400, 422), answer.text
    refusal = Refusal.of(answer)
    assert says(refusal, bad), refusal
    # /scale reports its own path with a dot in front.
    wrong = {field.removeprefix(".") for field, _ in refusal.causes if field and field != "<nil>"}
    assert len(wrong) <= 1, f"one wrong thing, but {wrong}"


@pytest.mark.parametrize("bad", UPDATED, ids=[bad.id for bad in UPDATED])
def test_change_refused(api: Api, bad: Bad) -> None:
    with api.existing(manifest(bad.name, bad.before)) as current:
        answer = api.update(current, manifest(bad.name, bad.change), **DRY_RUN)
        same = api.update(current, manifest(bad.name, bad.before), **DRY_RUN)
    assert answer.status_code == 422, answer.text
    assert says(Refusal.of(answer), bad), answer.text
    assert same.status_code == 200, same.text


def test_kubectl_shows_it(api: Api, kubectl: Kubectl, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    bad = manifest("good", {"batching": {"maxNumSeqs": 256, "maxNumBatchedTokens": 128}})
    file.write_text(yaml.safe_dump({**bad, "apiVersion": API_VERSION, "kind": "LLMService"}))
    done = kubectl("apply", "--dry-run=server", "-f", str(file))
    assert done.returncode == 1
    assert "spec.batching.maxNumBatchedTokens" in done.stderr
    assert "raise maxNumBatchedTokens or lower maxNumSeqs" in done.stderr
