"""The spellings that CEL refuses are exactly those that vLLM's parser takes for a typed or operator-owned flag."""

import re

import pytest
from llmservice_api.flags import KEYED, OPERATOR_OWNED, TYPED
from llmservice_api.rules import RULES
from llmservice_vllm.flags import FlagTable, Match
from llmservice_vllm.versions import flag_table, known_versions

from tests.contract.manifests import SPELLINGS

TABLES = [flag_table(version) for version in known_versions()]
REFUSED = {**TYPED, **OPERATOR_OWNED}
ITEM_RULES = RULES["spec.runtime.extraArgs[]"]
LISTED = {name for rule in ITEM_RULES for name in re.findall(r"'(-[^' ]*)'", rule.rule.partition(" in ")[2])}


def flag_of(token: str, table: FlagTable) -> str | None:
    match = table.resolve(token)
    return match.flag.name if isinstance(match, Match) else None


@pytest.mark.parametrize("table", TABLES, ids=known_versions())
def test_all_spellings_of_a_flag_are_listed(table: FlagTable) -> None:
    names = {table.by_spelling[flag].name for flag in REFUSED if flag in table.by_spelling}
    prefixes = {spelling[:end] for spelling in table.by_spelling for end in range(2, len(spelling) + 1)} - {"--"}
    taken = {token for token in prefixes if flag_of(token, table) in names}
    assert {flag for flag in REFUSED if flag in table.by_spelling} <= taken <= LISTED


def test_nothing_else_is_listed() -> None:
    names = {*REFUSED, *KEYED}
    assert [token for token in sorted(LISTED) if not any(flag_of(token, table) in names for table in TABLES)] == []


def test_the_contract_table_holds_what_the_parser_takes() -> None:
    for args, words in SPELLINGS:
        flag = next((found for table in TABLES if (found := flag_of(args[0], table)) is not None), None)
        assert flag is not None, args
        if flag in KEYED:
            assert words == KEYED[flag][args[0].partition(".")[2].partition("=")[0]]
        else:
            assert words == TYPED.get(flag, words)
            assert flag in REFUSED


def test_each_refusal_names_the_field_or_the_owner() -> None:
    messages = " ".join(rule.message for rule in ITEM_RULES)
    fields = [*TYPED.values(), *(field for keys in KEYED.values() for field in keys.values())]
    assert [field for field in fields if f"set {field} instead" not in messages] == []
    assert [flag for flag in OPERATOR_OWNED if flag not in messages] == []
