"""What pages tell a reader to type exists: commands and options, make targets, chart values, files, fields."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.app import COMMANDS, make_parser
from llmservice_operator.api.crd import schema

from tests.support.documents import PAGES, ROOT, code_of, commands_of, name_of

CRD_SCHEMA = schema()
CHART_SCHEMA = json.loads((ROOT / "charts/llmservice-operator/values.schema.json").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
OF_OTHERS = "spec.template"
"""A field of Deployments, and all below it."""


def pages(marker: str) -> list[Path]:
    """Pages that hold such a thing at all, so that a test is a page's."""
    return [page for page in PAGES if re.search(marker, page.read_text(encoding="utf-8"))]


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def command_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    whole = make_parser((command,))
    (subcommands,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    found: argparse.ArgumentParser = subcommands.choices[command]
    return found


@pytest.mark.parametrize("page", pages(r"(?m)^[$ ]*(- run: )?(kubectl )?llmservice "), ids=name_of)
def test_a_command_is_one_that_the_parser_takes(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        words for words in commands_of(page) if words[:1] == ["llmservice"] or words[:2] == ["kubectl", "llmservice"]
    ]
    refused = []
    for words in found:
        arguments = words[words.index("llmservice") + 1 :]
        if "..." in arguments:  # any of them
            continue
        try:
            make_parser(arguments).parse_args(arguments)
        except SystemExit:
            refused.append((words, capsys.readouterr().err))
    assert refused == []


@pytest.mark.parametrize("page", pages(r"`llmservice \w"), ids=name_of)
def test_a_command_in_a_sentence_has_the_options_that_are_named(page: Path) -> None:
    wrong = []
    for command, rest in re.findall(r"`(?:kubectl )?llmservice (\w+)([^`\n]*)`", page.read_text(encoding="utf-8")):
        known = options_of(command_parser(command)) if command in COMMANDS else set()
        wrong += [(command, option) for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", rest) if option not in known]
        if command not in COMMANDS:
            wrong.append((command, ""))
    assert wrong == []


@pytest.mark.parametrize("page", pages(r"\bmake [a-z]"), ids=name_of)
def test_a_make_target_is_in_the_makefile(page: Path) -> None:
    named = {word for words in commands_of(page) if words[0] == "make" for word in words[1:] if target(word)}
    named |= set(re.findall(r"`make ([a-z][a-z0-9-]*)", page.read_text(encoding="utf-8")))
    assert named - TARGETS == set()


def target(word: str) -> bool:
    return re.fullmatch(r"[a-z][a-z0-9-]*", word) is not None


def chart_keys(part: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, child in (part.get("properties") or {}).items():
        below = f"{path}.{name}".lstrip(".")
        yield below
        yield from chart_keys(child, below)


@pytest.mark.parametrize("page", pages(r"--set "), ids=name_of)
def test_a_chart_value_is_in_its_schema(page: Path) -> None:
    keys = set(chart_keys(CHART_SCHEMA))
    named = set(re.findall(r"--set(?:-string)?[ =]'?([\w.]+)=", page.read_text(encoding="utf-8")))
    assert named - keys == set()


def test_nothing_is_installed_by_a_name_that_is_on_no_index() -> None:
    """The package is installed from a checkout, with extras that it has."""
    texts = [*PAGES, *(ROOT / "cli").rglob("*.py")]
    named = [
        (name_of(path), what)
        for path in texts
        for what in re.findall(r"pip install '?([^'\s`]+)", path.read_text(encoding="utf-8"))
    ]
    assert named
    assert [one for one in named if not one[1].startswith((".[", "./"))] == []
    extras = {extra for _, what in named for extra in re.findall(r"\[([\w,]+)\]", what)[0].split(",")}
    assert extras <= EXTRAS


FILES = re.compile(r"(?:charts|crds|docs|examples|operator|runtime|scripts|tests|benchmarks)/[\w./-]*\w")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_file_that_a_command_names_is_there(page: Path) -> None:
    words = {word.split("::")[0] for words in commands_of(page) for word in words}
    named = {word for word in words if FILES.fullmatch(word)}
    assert {word for word in named if not (ROOT / word).exists()} == set()


@pytest.mark.parametrize("page", pages(r"python -m \w"), ids=name_of)
def test_a_module_that_is_run_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = set(re.findall(r"python3? -m ([a-z_][\w.]*)", text))
    roots = (ROOT, ROOT / "operator", ROOT / "runtime", ROOT / "fetch", ROOT / "cli")
    missing = set()
    for name in modules:
        place = Path(*name.split("."))
        if not any((root / place).with_suffix(".py").is_file() or (root / place).is_dir() for root in roots):
            missing.add(name)
    assert missing == set()


def has_field(path: str) -> bool:
    """Whether the CRD has it; a map has any key."""
    place: Any = CRD_SCHEMA
    for name in path.split("."):
        while "items" in place:
            place = place["items"]
        if "properties" in place:
            if name not in place["properties"]:
                return False
            place = place["properties"][name]
        elif "additionalProperties" in place:
            place = place["additionalProperties"]
        else:
            return False
    return True


@pytest.mark.parametrize("page", pages(r"`(spec|status)\."), ids=name_of)
def test_a_field_that_is_named_is_in_the_crd(page: Path) -> None:
    code = code_of(page)
    named = set(re.findall(r"(?<![\w./{-])((?:spec|status)(?:\.[A-Za-z]\w*(?:\[\w*\])?)+)", code))
    plain = {re.sub(r"\[\w*\]", "", name) for name in named}
    assert {name for name in plain if not name.startswith(OF_OTHERS) and not has_field(name)} == set()


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"llmservice {name} " not in text] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`{name}`" not in readme and f"llmservice {name}" not in readme] == []


def test_the_words_of_a_command_are_found() -> None:
    """The test of the tests: comments, pipes, prompts and line ends are no part of a command."""
    found = list(commands_of(ROOT / "docs" / "cli.md"))
    assert ["llmservice", "plan", "-f", "llmservice.yaml"] in found
    assert ["llmservice", "plan", "--batch", "cases.jsonl"] in found
    assert shlex.join(["llmservice", "rollback", "chat"]) in {shlex.join(words) for words in found}
