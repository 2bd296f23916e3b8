"""Every reason is explained once, agrees with the supervisor, and its remedy names fields that exist."""

import re
from pathlib import Path

import llmservice_fetch
import llmservice_operator
import llmservice_runtime
import pytest
from llmservice_operator.api.crd import schema
from llmservice_operator.api.reason_docs import GROUPS
from llmservice_operator.api.reasons import REASONS, Reason
from llmservice_operator.api.rules import RULES
from llmservice_operator.api.schema import at
from llmservice_runtime.contract import FailureReason

ROOT = schema()
FIELD = re.compile(r"(?:spec|status)(?:\.[a-z][A-Za-z0-9]*)+")


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_explained(reason: Reason) -> None:
    doc = REASONS[reason]
    assert doc.summary.endswith(".")
    assert doc.remedy.endswith((".", '".', "`."))
    for path in FIELD.findall(f"{doc.summary} {doc.remedy} {doc.look}"):
        assert at(ROOT, path), path


def test_each_is_in_one_group_and_says_where_to_look() -> None:
    words = [word for group in GROUPS for word in group.docs]
    assert sorted(words) == sorted(str(reason) for reason in Reason)
    assert [word for group in GROUPS for word, doc in group.docs.items() if not (doc.look or group.look)] == []


def test_a_reason_is_a_word_that_a_condition_may_carry() -> None:
    assert [reason for reason in Reason if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason)] == []


def test_what_the_supervisor_finds_has_a_reason() -> None:
    assert {str(reason) for reason in FailureReason} <= {str(reason) for reason in Reason}


def test_the_messages_of_rules_name_fields_that_exist() -> None:
    found = [path for rules in RULES.values() for rule in rules for path in FIELD.findall(rule.message)]
    assert len(found) > 20
    assert [path for path in found if not at(ROOT, path)] == []


def test_every_reason_can_be_told() -> None:
    """A reason that nothing gives would be a line in the docs about what never happens."""
    modules = (llmservice_operator, llmservice_runtime, llmservice_fetch)
    packages = [Path(module.__path__[0]) for module in modules]
    files = [file for package in packages for file in package.rglob("*.py") if file.name != "reasons.py"]
    code = "\n".join(file.read_text() for file in files)
    assert [reason.name for reason in Reason if f".{reason.name}" not in code] == []
