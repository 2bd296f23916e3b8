"""The spellings that CEL refuses are exactly those that vLLM's parser takes for a typed or operator-owned flag."""

import re

from llmservice_operator.api.flags import KEYED, OPERATOR_OWNED, TYPED
from llmservice_operator.api.rules import RULES
from llmservice_runtime.flags import FlagTable, Match, flag_table, known_versions

from tests.contract.manifests import SPELLINGS

TABLE: FlagTable = flag_table(known_versions()[0])
REFUSED = {**TYPED, **OPERATOR_OWNED}
ITEM_RULES = RULES["spec.runtime.extraArgs[]"]
LISTED = {name for rule in ITEM_RULES for name in re.findall(r"'(-[^' ]*)'", rule.rule.partition(" in ")[2])}
PREFIXES = {spelling[:end] for spelling in TABLE.by_spelling for end in range(2, len(spelling) + 1)} - {"--"}


def flag_of(token: str) -> str | None:
    match = TABLE.resolve(token)
    return match.flag.name if isinstance(match, Match) else None


def test_all_spellings_of_a_flag_are_listed() -> None:
    names = {TABLE.by_spelling[flag].name for flag in REFUSED}
    taken = {token for token in PREFIXES if flag_of(token) in names}
    assert REFUSED.keys() <= taken <= LISTED


def test_nothing_else_is_listed() -> None:
    names = {TABLE.by_spelling[flag].name for flag in (*REFUSED, *KEYED)}
    assert [token for token in sorted(LISTED) if flag_of(token) not in names] == []


def test_the_contract_table_holds_what_the_parser_takes() -> None:
    for args, words in SPELLINGS:
        flag = flag_of(args[0])
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
