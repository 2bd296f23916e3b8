"""Every reason is explained once, agrees with the supervisor, and its remedy names fields that exist."""

import re
from pathlib import Path

import llmservice_api
import llmservice_fetch
import llmservice_operator
import llmservice_planner
import llmservice_runtime
from llmservice_api.crd import at, schema
from llmservice_api.reasons import SECTIONS, Reason
from llmservice_api.rules import RULES
from llmservice_runtime.contract import FailureReason

ROOT = schema()
FIELD = re.compile(r"(?:spec|status)(?:\.[a-z][A-Za-z0-9]*)+")


def test_each_is_explained_in_a_section_and_names_fields_that_exist() -> None:
    for reason in Reason:
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason), "as a condition's reason must be"
        assert reason.summary.endswith(".")
        assert reason.remedy.endswith((".", '".', "`."))
        assert reason.row.look
        for path in FIELD.findall(f"{reason.summary} {reason.remedy} {reason.row.look}"):
            assert at(ROOT, path), path
    assert {reason.row.section.title for reason in Reason} == {section.title for section in SECTIONS}


def test_what_the_supervisor_finds_has_a_reason() -> None:
    assert [reason for reason in FailureReason if Reason(reason).row is not reason.row] == []


def test_the_messages_of_rules_name_fields_that_exist() -> None:
    found = [path for rules in RULES.values() for rule in rules for path in FIELD.findall(rule.message)]
    assert len(found) > 20
    assert [path for path in found if not at(ROOT, path)] == []


def test_every_reason_can_be_told() -> None:
    """A reason that nothing gives would be a line in the docs about what never happens."""
    modules = (llmservice_api, llmservice_planner, llmservice_operator, llmservice_runtime, llmservice_fetch)
    packages = [Path(module.__path__[0]) for module in modules]
    files = [file for package in packages for file in package.rglob("*.py") if file.name != "reasons.py"]
    code = "\n".join(file.read_text() for file in files)
    assert [reason.name for reason in Reason if f".{reason.name}" not in code] == []
