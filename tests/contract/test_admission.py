"""`llmservice plan -f` and the API server agree: on every manifest of the tables, and on many combinations of them."""

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from llmservice_cli.admission.check import problems
from llmservice_operator.api import constants

from tests.contract.api import Api, Refusal
from tests.contract.bad_manifests import BAD
from tests.contract.good_manifests import GOOD
from tests.contract.manifests import manifest

pytestmark = pytest.mark.cluster

CHANGES: Mapping[str, Mapping[str, Any]] = {
    **{bad.id: bad.change for bad in BAD if bad.change and not bad.before},
    **{good.id: good.change for good in GOOD if good.change},
}
UNKNOWN = {bad.id for bad in BAD if not bad.field}
COMBINATIONS = 200
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')


def said_by_the_server(api: Api, written: Mapping[str, Any]) -> set[str]:
    """The fields that it refuses; empty where it takes the manifest."""
    answer = api.try_create(written)
    if answer.status_code == 201:
        return set()
    assert answer.status_code in (400, 422), answer.text
    refusal = Refusal.of(answer)
    fields = {field.removeprefix(".") for field, _ in refusal.causes if field and field != "<nil>"}
    return fields or set(_UNKNOWN_FIELD.findall(refusal.message))


def said_by_the_command(written: Mapping[str, Any]) -> set[str]:
    whole = {"apiVersion": constants.API_VERSION, "kind": constants.KIND, **written}
    return {problem.field for problem in problems(whole)}


def combined(seed: int) -> tuple[list[str], dict[str, Any]]:
    """Two or three changes of the tables in one manifest; of two for one field the first counts."""
    names = random.Random(seed).sample(sorted(CHANGES), 2 + seed % 2)
    change: dict[str, Any] = {}
    for name in names:
        for path, value in CHANGES[name].items():
            if not any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in change):
                change[path] = value
    return names, manifest("good", change)


@pytest.mark.parametrize("name", CHANGES)
def test_of_one_change(api: Api, name: str) -> None:
    written = manifest("good", CHANGES[name])
    assert said_by_the_command(written) == said_by_the_server(api, written)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(COMBINATIONS))
def test_of_several(api: Api, seed: int) -> None:
    names, written = combined(seed)
    server, command = said_by_the_server(api, written), said_by_the_command(written)
    # The API server names unknown fields alone, before it validates; the command names all that is wrong at once.
    assert bool(command) == bool(server), names
    assert server <= command, names
    assert len(server) == len(command) or UNKNOWN & set(names), names
