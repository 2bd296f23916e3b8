"""The page of all commands and the manual page: not stale, and complete."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from llmservice_cli import reference
from llmservice_cli.app import COMMANDS

from tests.support.documents import ROOT


@pytest.mark.parametrize("path", reference.generated(), ids=str)
def test_it_is_not_stale(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == reference.generated()[Path(path)], "make crds"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_how_it_is_used_and_how_it_ends(name: str) -> None:
    found = reference.described(name)
    assert found.examples, "examples: in its EPILOG"
    assert {"0", "2"} <= found.exits.keys()
    assert all(entry.text for entry in found.entries), "an option without help"
    assert {"-h, --help"} <= {entry.names for entry in found.entries}


TWO_CODES = """\
examples:
  llmservice x      what it does

exit codes, as of others:
  0    done
  1    not done,
       which is a pity
Of several the worst counts.
"""


def test_codes_and_examples_are_read_from_the_help() -> None:
    assert reference.exits_of(TWO_CODES) == {"0": "done", "1": "not done, which is a pity"}
    assert reference.exits_of("no codes here") == {}
    assert list(reference.block(TWO_CODES, "examples")) == ["  llmservice x      what it does"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_page_has_no_errors() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(ROOT / reference.MANUAL)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_same_words_have_one_order() -> None:
    """Python takes two Literals of the same words for one, and shows the order of the one that was imported first."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "cli").rglob("*.py"))
    found = {tuple(re.findall(r'"([^"]+)"', words)) for words in re.findall(r"Literal\[([^\]]+)\]", source)}
    assert len(found) == len({frozenset(words) for words in found}), sorted(found)
