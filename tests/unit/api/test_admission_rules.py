"""The CRD's rules on the command line: Kubernetes' functions, values that CEL does not take, rules without a value.

What each rule refuses is in cli/test_plan_refuses.py, with the manifests that tests/contract/ has an API server refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from llmservice_api.constants import API_VERSION, KIND
from llmservice_api.crd import fraction_rules, schema
from llmservice_api.rules import RULES
from llmservice_cli.admission import check
from llmservice_cli.admission.check import Failed, evaluate, problems

OBJECT = {"name": "a-b=c", "size": 5, "on": False, "list": ["x", "yz"], "map": {"cpu": "500m", "memory": 1}}
VALUES: Mapping[str, Any] = {
    "quantity(self.map['cpu']).compareTo(quantity(string(self.map['memory'])))": -1,
    "quantity('1Gi').compareTo(quantity('1024Mi'))": 0,
    "self.list.map(one, one.size()).sum()": 3,
    "self.name.split('=')[0].replace('-', '_')": "a_b",
    "self.name.substring(2, 3) + self.name.substring(4)": "bc",
    "type(self.size) == int && type(self.on) != int": True,
    "self.size == 5.0 && self.size > 4.5": True,
    "self.none > 1 || true": True,
    "oldSelf == null": True,
}


@pytest.mark.parametrize(("text", "value"), VALUES.items(), ids=VALUES)
def test_an_expression_has_its_value(text: str, value: object) -> None:
    assert evaluate(text, OBJECT) == value


@pytest.mark.parametrize(
    "text",
    [
        "self.none",
        "self.list[7]",
        "self.size < 'a'",
        "self.size * 9223372036854775807 > 0",
        "quantity('lots')",
        "quantity(self.size)",
        "'a'.substring(1, 9)",
    ],
)
def test_what_has_no_value_fails(text: str) -> None:
    with pytest.raises(Failed):
        evaluate(text, OBJECT)


@pytest.mark.parametrize("text", ["self.", "a ? b", "other", "isURL(self.name)"])
def test_what_is_no_expression_is_no_answer(text: str) -> None:
    with pytest.raises(RuntimeError, match="ERROR"):
        evaluate(text, OBJECT)


def test_every_rule_of_the_crd_uses_only_functions_that_are_there() -> None:
    rules = [rule for some in (*RULES.values(), *fraction_rules(schema()).values()) for rule in some]
    assert len(rules) > 100
    for rule in rules:
        for text in filter(None, (rule.rule, rule.message_expression)):
            with suppress(Failed):
                evaluate(text, {})


def refused(spec: Mapping[str, Any], live: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    whole = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "chat"}, "spec": spec}
    return [(problem.field, problem.message) for problem in problems(whole, live)]


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hf://a/b", []),
        ("s3://models/b\0", ["must hold no '..', no '//' and no white space"]),
        ("s3://models/\ud800", []),
    ],
)
def test_a_text_is_read_to_its_end(uri: str, says: list[str]) -> None:
    found = refused({"model": {"uri": uri}})
    assert [field for field, _ in found] == ["spec.model.uri" for _ in says]
    assert all(words in message for (_, message), words in zip(found, says, strict=True))


def test_an_integer_of_more_than_64_bits_hides_no_other_answer() -> None:
    """As the API server has it: of a wrong type beside which no rule is evaluated; in an unknown field it is unread."""
    model = {"uri": "hf://a/b"}
    assert refused({"model": model, "batching": {"maxNumSeqs": 2**64}}) == [
        ("spec.batching.maxNumSeqs", f"{2**64} is not a 64-bit number.")
    ]
    assert refused({"model": {**model, "sort": [-(2**64), 10**400]}}) == [("spec.model.sort", "is an unknown field.")]


def test_a_rule_without_a_value_refuses_and_a_message_without_one_is_the_fixed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = [
        {"rule": "self.none > 1", "messageExpression": "self.none", "message": "first"},
        {"rule": "self.size < 5", "messageExpression": "'not ' + string(self.size)", "message": "second"},
        {"rule": "self.size >= oldSelf.size", "message": "third"},
    ]
    spec = {"type": "object", "properties": {"size": {"type": "integer"}}, "x-kubernetes-validations": rules}
    monkeypatch.setattr(check, "_schema", lambda: {"properties": {"spec": spec, "apiVersion": {}, "kind": {}}})
    assert refused({"size": 5}) == [("spec", "first."), ("spec", "not 5.")]
    assert refused({"size": 4}, {"spec": {"size": 5}}) == [("spec", "first."), ("spec", "third.")]
