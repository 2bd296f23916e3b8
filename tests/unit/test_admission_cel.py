"""The CEL that the command line evaluates itself: what each form means, and that every rule of the CRD is within it."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_api.crd import fraction_rules, schema
from llmservice_api.rules import RULES
from llmservice_cli.admission.cel import Failed, UnknownSyntax, evaluate, parse

OBJECT = {
    "name": "a-b=c",
    "size": 5,
    "share": 0.5,
    "on": False,
    "list": ["x", "y"],
    "map": {"cpu": "500m", "memory": 1},
    "deep": {"er": {"text": "äöü"}},
}
VALUES: dict[str, Any] = {
    "self.size + 2 * 3 == 11": True,
    "self.size % 2": 1,
    "-self.size": -5,
    "self.size >= 5 && self.size < 6": True,
    "1 + 1 == 2 ? 'yes' : 'no'": "yes",
    "false ? 1 : true ? 2 : 3": 2,
    "!self.on && !false": True,
    "true || false && false": True,
    "has(self.deep.er)": True,
    "has(self.deep.other)": False,
    "!has(self.none) || self.none > 1": True,
    "self.none > 1 || true": True,
    "false && self.none > 1": False,
    "self.none > 1 && false": False,
    "'x' in self.list": True,
    "'cpu' in self.map": True,
    "self.list[1]": "y",
    "self.list.all(one, one < 'z')": True,
    "[1, 'a'].exists(one, one > 0)": True,
    "[1, 'a'].all(one, one < 0)": False,
    "self.list.map(one, one.size()).sum()": 2,
    "-5 % 3": -2,
    "self.list.exists(one, one == 'q')": False,
    "self.map.all(key, key.matches('^[a-z]+$'))": True,
    "self.list.size() + self.name.size()": 7,
    "self.deep.er.text.size()": 3,
    "self.name.split('=')[0].replace('-', '_')": "a_b",
    "self.name.substring(2, 3) + self.name.substring(4)": "bc",
    "self.name.contains('b=') && self.name.startsWith('a')": True,
    "self.name.matches('[[:alpha:]]-b')": True,
    r"'it\'s \\ it' == 'it\'s \\ it'": True,
    "type(self.size) == int && type(self.name) != int": True,
    "type(self.on) == int": False,
    "int(self.size) == self.size": True,
    "string(self.size) + 'Gi'": "5Gi",
    "quantity(self.map['cpu']).compareTo(quantity(string(self.map['memory'])))": -1,
    "self.size > 4.5 && self.share <= 1": True,
    "1 == true": False,
}


@pytest.mark.parametrize(("text", "value"), VALUES.items(), ids=VALUES)
def test_an_expression_has_its_value(text: str, value: object) -> None:
    assert evaluate(text, {"self": OBJECT}) == value


@pytest.mark.parametrize(
    "text",
    [
        "self.none",
        "other",
        "self.list[7]",
        "self.size < 'a'",
        "true && self.none",
        "quantity('lots')",
        "'a'.substring(1, 9)",
    ],
)
def test_what_has_no_value_fails(text: str) -> None:
    with pytest.raises(Failed):
        evaluate(text, {"self": OBJECT})


@pytest.mark.parametrize("text", ["", "self.", "a b", "(a", "[a, ", "a ? b", "'a", "a; b", "has(self.a"])
def test_what_is_no_expression_is_said(text: str) -> None:
    with pytest.raises(UnknownSyntax):
        parse(text)


def test_every_rule_of_the_crd_can_be_read() -> None:
    rules = [rule for some in (*RULES.values(), *fraction_rules(schema()).values()) for rule in some]
    assert len(rules) > 100
    for rule in rules:
        parse(rule.rule)
        if rule.message_expression is not None:
            parse(rule.message_expression)
