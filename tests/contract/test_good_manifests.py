"""Rules refuse nothing that is right, and what is right keeps every field."""

import pytest
from llmservice_operator.api.service import parse_spec

from tests.contract.api import Api
from tests.contract.good_manifests import GOOD, Good
from tests.contract.manifests import manifest

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("good", GOOD, ids=[good.id for good in GOOD])
def test_accepted(api: Api, good: Good) -> None:
    written = manifest(good.name, good.change)
    answer = api.try_create(written)
    assert answer.status_code == 201, answer.text
    stored = answer.json()["spec"]
    assert stored == {"scaling": {"replicas": 1}, **written["spec"]}
    assert parse_spec(stored).model.uri == written["spec"]["model"]["uri"]
