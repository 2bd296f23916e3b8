"""What each rule costs at worst, by the API server's own estimate, for the oldest Kubernetes that is supported."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.crd import crd_yaml, fraction_rules, schema
from llmservice_api.rules import RULES

pytestmark = pytest.mark.cluster

RULE_LIMIT = 10_000_000
WHOLE_LIMIT = 100_000_000


@pytest.fixture(scope="module")
def estimates(celcost: Path) -> list[dict[str, Any]]:
    done = subprocess.run([celcost], input=crd_yaml(), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_rule_compiles_and_is_counted(estimates: list[dict[str, Any]]) -> None:
    assert [line for line in estimates if "error" in line] == []
    rules = [*RULES.values(), *fraction_rules(schema()).values()]
    assert len(estimates) == sum(map(len, rules))


def test_no_rule_costs_a_tenth_of_the_limit(
    estimates: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{'rule':>9} {'message':>9}  of {RULE_LIMIT} each")
        for line in sorted(estimates, key=lambda line: -int(line["cost"])):
            print(f"{line['cost']:9} {line['messageExpression']:9}  {line['path'] or '.'}: {line['rule'][:80]}")
    worst = max(max(line["cost"], line["messageExpression"]) for line in estimates)
    assert worst < RULE_LIMIT / 10


def test_all_rules_together_stay_below_a_fifth(estimates: list[dict[str, Any]]) -> None:
    assert sum(line["cost"] + line["messageExpression"] for line in estimates) < WHOLE_LIMIT / 5
