"""`llmservice explain`: reasons, conditions and fields, from the data that the reference pages are made of."""

from __future__ import annotations

import subprocess
import sys

import pytest
from llmservice_api.conditions import ConditionType
from llmservice_api.flags import FLAGS
from llmservice_api.reasons import Reason
from llmservice_cli.explain.fields import fields
from llmservice_cli.explain.reported import MEANINGS, fields_of, reasons_of, reported

from tests.unit.cli_world import Command

KNOWN = fields()


def flat(text: str) -> str:
    """Without what wraps lines."""
    return " ".join(text.split())


def test_every_reason_has_a_line(llmservice: Command) -> None:
    ran = llmservice("explain")
    lines = [line.split() for line in ran.out.splitlines() if line.startswith("  ")]
    assert {words[0] for words in lines} == set(Reason)
    listed = llmservice("explain", "-o", "json").json
    assert (listed["version"], len(listed["reasons"])) == (1, len(Reason))


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_explained_with_the_texts_of_the_reference(reason: Reason, llmservice: Command) -> None:
    ran = llmservice("explain", reason.lower())
    assert ran.code == 0
    page = flat(ran.out)
    for text in (reason, reason.summary, reason.remedy, reason.row.look, reason.row.section.intro):
        assert flat(text) in page
    assert reported(reason), "it is reported somewhere"
    assert set(fields_of(reason)) <= {path.replace("[]", "") for path in KNOWN}


def test_a_terminal_gets_colours(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("llmservice_cli.terminal.is_styled", lambda: True)
    assert llmservice("explain", Reason.DOES_NOT_FIT).out.startswith(f"\x1b[1m{Reason.DOES_NOT_FIT}\x1b[0m: ")


def test_a_failure_says_where_it_is_reported_and_how_it_ends(llmservice: Command) -> None:
    page = flat(llmservice("explain", "ModelNotFound").out)
    assert "status.failure" in page
    assert "how it ends somebody changes something" in page
    found = llmservice("explain", "streams-ended", "-o", "json").json
    assert found["reportedIn"] == {"conditions": [], "failure": False, "event": True}


@pytest.mark.parametrize("condition", ConditionType)
def test_a_condition_and_its_reasons(condition: ConditionType, llmservice: Command) -> None:
    assert f"{condition}: a condition of the status" in llmservice("explain", condition).out
    found = llmservice("explain", condition, "-o", "json").json
    assert (found["condition"], found["summary"]) == (condition, MEANINGS[condition])
    assert found["reasons"] == list(reasons_of(condition))
    assert found["reasons"]


FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "by its path": (
        "spec.batching.maxNumSeqs",
        (
            "spec.batching.maxNumSeqs: integer, 1 to 65536",
            "vLLM's flag --max-num-seqs",
            "example 256",
            "default vLLM's",
        ),
    ),
    "in another spelling": ("SPEC.batching.max_num_seqs", ("spec.batching.maxNumSeqs: integer",)),
    "without spec": ("batching.maxNumSeqs", ("spec.batching.maxNumSeqs: integer",)),
    "as kubectl explain has it": ("llms.spec.batching", ("spec.batching: object", "fields: maxNumSeqs")),
    "by its last name": ("maxNumSeqs", ("spec.batching.maxNumSeqs: integer",)),
    "by vLLM's flag": ("max-num-seqs", ("spec.batching.maxNumSeqs: integer",)),
    "with a default": ("spec.drain.timeoutSeconds", ("default 120",)),
    "of a list": ("spec.adapters.uri", ("spec.adapters[].uri: string", "required")),
    "of the status": ("status.plan.verdict", ("Fits, Tight, DoesNotFit or Unknown",)),
    "the spec's comes first": ("replicas", ("spec.scaling.replicas: integer, 0 to 1000", "default 1")),
    "all of them": ("spec", ("fields: paused", "batching")),
}


@pytest.mark.parametrize(("word", "expected"), FIELDS.values(), ids=FIELDS)
def test_a_field(word: str, expected: tuple[str, ...], llmservice: Command) -> None:
    ran = llmservice("explain", word)
    assert ran.code == 0, ran.err
    for text in expected:
        assert text in flat(ran.out)


def test_every_flag_is_found_with_its_field(llmservice: Command) -> None:
    described = {path.replace("[]", ""): field for path, field in KNOWN.items()}
    assert all(flag.name in described[flag.field].flags for flag in FLAGS)


UNKNOWN = {
    "a reason": ("ModelNotFond", "did you mean ModelNotFound"),
    "a field": ("spec.batchin.maxNumSeqs", "did you mean spec.batching.maxNumSeqs"),
    "a last name": ("maxNumSeq", "did you mean spec.batching.maxNumSeqs"),
    "several fields": ("kvCacheTokens", "status.plan.kvCacheTokens or "),
    "nothing like it": ("qqqqqqq", "`llmservice explain` lists the reasons"),
    "very long": ("x" * 5000, "there is no reason, condition or field"),
}


@pytest.mark.parametrize(("word", "expected"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_there_is_not_comes_with_what_is_similar(word: str, expected: str, llmservice: Command) -> None:
    ran = llmservice("explain", word)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert len(ran.err) < 1500


@pytest.mark.parametrize(
    ("word", "kept_out"),
    [
        ("ModelNotFound", ("pydantic", "httpx", "aiohttp", "kubeloop.client")),
        ("spec.batching", ("httpx", "aiohttp", "kubeloop.client")),
    ],
)
def test_no_client_of_the_api_is_imported(word: str, kept_out: tuple[str, ...]) -> None:
    program = (
        "import sys; from llmservice_cli.app import run; code = run(['explain', sys.argv[1]]);"
        "sys.stderr.write(' '.join(sys.modules)); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", program, word], capture_output=True, text=True, check=True)
    assert not {*kept_out} & {*ran.stderr.split()}
