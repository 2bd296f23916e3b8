"""extraArgs, every spelling of every flag of vLLM: refused where it has a field or an owner, else accepted."""

import re

import pytest
from llmservice_api.flags import OPERATOR_OWNED, TYPED
from llmservice_vllm.flags import FlagTable, Match
from llmservice_vllm.versions import flag_table, known_versions

from tests.contract.api import Api, Refusal
from tests.contract.manifests import manifest

pytestmark = pytest.mark.cluster

TABLE: FlagTable = flag_table(known_versions()[0])
REFUSED = {TABLE.by_spelling[flag].name for flag in (*TYPED, *OPERATOR_OWNED)}
SPELLED = {spelling[:end] for spelling in TABLE.by_spelling for end in range(2, len(spelling) + 1)} - {"--"}


def flag_of(token: str) -> str | None:
    match = TABLE.resolve(token)
    return match.flag.name if isinstance(match, Match) else None


TAKEN = {token: flag for token in sorted(SPELLED) if (flag := flag_of(token))}
BAD_TOKENS = [token for token, flag in TAKEN.items() if flag in REFUSED]
GOOD_TOKENS = [token for token, flag in TAKEN.items() if flag not in REFUSED]


def batches(tokens: list[str]) -> list[list[str]]:
    """Each token in its variants, 64 at a time."""
    every = [variant for token in tokens for variant in variants(token)]
    return [every[start : start + 64] for start in range(0, len(every), 64)]


def variants(token: str) -> list[str]:
    """The token with a value, with underscores, and with a dotted key."""
    if not token.startswith("--"):
        return [token, f"{token}=1"]
    return [token, f"{token}=1", "--" + token[2:].replace("-", "_"), f"{token}.key=1"]


def test_the_table_is_the_whole_table() -> None:
    assert len(BAD_TOKENS) > 400
    assert len(GOOD_TOKENS) > 1500


@pytest.mark.parametrize("batch", batches(BAD_TOKENS), ids=lambda batch: batch[0])
def test_typed_and_owned_flags_are_refused(api: Api, batch: list[str]) -> None:
    answer = api.try_create(manifest("good", {"runtime.extraArgs": batch}))
    assert answer.status_code == 422, answer.text
    refused = {
        int(index)
        for field, _ in Refusal.of(answer).causes
        for index in re.findall(r"^spec\.runtime\.extraArgs\[(\d+)\]$", field)
    }
    assert [token for index, token in enumerate(batch) if index not in refused] == []


@pytest.mark.parametrize("batch", batches(GOOD_TOKENS), ids=lambda batch: batch[0])
def test_other_flags_are_accepted(api: Api, batch: list[str]) -> None:
    answer = api.try_create(manifest("good", {"runtime.extraArgs": batch}))
    assert answer.status_code == 201, answer.text
