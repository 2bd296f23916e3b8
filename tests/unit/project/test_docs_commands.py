"""Pages name only commands, options, make targets, chart values, files, modules and fields that exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from llmservice_api.crd import schema
from llmservice_cli.app import COMMANDS, command, parse

from tests.support.documents import PACKAGE_FOLDERS, PAGES, ROOT, code_of, commands_of, name_of, shell_blocks
from tests.support.shell import statements

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


def options_of(name: str) -> set[str]:
    """Of one command."""
    return {"--help", "-h"} | {
        option for param in command(name).params for option in (*param.opts, *param.secondary_opts)
    }


def chart_keys(part: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, child in (part.get("properties") or {}).items():
        below = f"{path}.{name}".lstrip(".")
        yield below
        yield from chart_keys(child, below)


LABELS = tuple(f"{key}." for key in chart_keys(CHART_SCHEMA) if key.endswith(("abels", "nnotations")))
"""Maps of the chart's values that take any key below them."""


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


def commands(page: Path) -> Iterator[object]:
    """Those that the parser refuses."""
    for words in commands_of(page):
        if words[:1] != ["llmservice"] and words[:2] != ["kubectl", "llmservice"]:
            continue
        arguments = words[words.index("llmservice") + 1 :]
        try:
            if "..." not in arguments:
                parse(arguments)
        except click.ClickException:
            yield words


def options(page: Path) -> Iterator[object]:
    for name, rest in re.findall(r"`(?:kubectl )?llmservice (\w+)([^`\n]*)`", page.read_text(encoding="utf-8")):
        known = options_of(name) if name in COMMANDS else set()
        yield from [name] if name not in COMMANDS else []
        yield from set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)) - known


def targets(page: Path) -> set[str]:
    words = {word for words in commands_of(page) if words[0] == "make" for word in words[1:]}
    named = {word for word in words if re.fullmatch(r"[a-z][a-z0-9-]*", word)}
    return (named | set(re.findall(r"`make ([a-z][a-z0-9-]*)", page.read_text(encoding="utf-8")))) - TARGETS


def chart_values(page: Path) -> set[str]:
    named = re.findall(r"--set(?:-string|-json)?[ =]'?([\w.]+)=", page.read_text(encoding="utf-8"))
    keys = set(chart_keys(CHART_SCHEMA))
    return {name for name in named if name not in keys and not name.startswith(LABELS)}


def files(page: Path) -> Iterator[object]:
    for word in {word.split("::")[0] for words in commands_of(page) for word in words}:
        if FILES.fullmatch(word) and not (ROOT / word).exists():
            yield word


def modules(page: Path) -> Iterator[object]:
    roots = (ROOT, *(ROOT / folder for folder in PACKAGE_FOLDERS))
    for name in set(re.findall(r"python3? -m ([a-z_][\w.]*)", page.read_text(encoding="utf-8"))):
        place = Path(*name.split("."))
        if not any((root / place).with_suffix(".py").is_file() or (root / place).is_dir() for root in roots):
            yield name


def fields(page: Path) -> Iterator[object]:
    for name in set(re.findall(r"(?<![\w./{-])((?:spec|status)(?:\.[A-Za-z]\w*(?:\[\w*\])?)+)", code_of(page))):
        path = re.sub(r"\[\w*\]", "", name)
        if not path.startswith(OF_OTHERS) and not has_field(path):
            yield path


FILES = re.compile(r"(?:charts|crds|docs|deploy|examples|operator|runtime|cli|tools|tests)/[\w./-]*\w")
TRIED = ("llmservice", "kubectl", "helm", "make")
OTHERS: Mapping[str, str] = {
    "eval": "of what a make target prints; the target is compared with the Makefile",
    "source": "shell completion, which tests/unit/cli/test_completion.py runs",
    ".venv/bin/pytest": "its files are compared with the tree, above",
    "pip": "what it installs is compared with the package, below",
    "curl": "requests to a service: tests/e2e/test_get_started.py sends one",
    "kill": "of a command in the background: tests/e2e/test_get_started.py",
    "docker": "builds what `make cluster` builds of the same Dockerfiles with BuildKit",
    "sha256sum": "of a release, which tests/e2e/test_release.py makes and checks",
    "cosign": "of a release, which tests/e2e/test_release.py makes and checks",
    "crane": "of a release, which tests/e2e/test_release.py makes and copies",
    "openssl": "run below, with the shell's own words around it",
    "for": "the shell's own",
    "done": "the shell's own",
    "printf": "the shell's own",
    "git": "another program's answer goes into `llmservice chat`",
    "vllm": "vLLM's own measurement: tests/unit/cli/test_bench_vllm.py compares with it",
}
"""Programs whose lines no test gives to the program itself, and why that is well."""
NEEDS = {"gpu", "internet", "docker", "registry", "keda", "cert-manager", "flux", "argocd", "prometheus"}
"""What a block may be marked with."""
_ASSIGNMENT = re.compile(r"\w+=")
CHECKS: Mapping[str, tuple[str, Callable[[Path], Iterable[object]]]] = {
    "commands": (r"(?m)^[$ ]*(- run: )?(kubectl )?llmservice ", commands),
    "options in sentences": (r"`llmservice \w", options),
    "make targets": (r"\bmake [a-z]", targets),
    "chart values": (r"--set ", chart_values),
    "files": ("", files),
    "modules": (r"python -m \w", modules),
    "fields": (r"`(spec|status)\.", fields),
}
"""What is unknown of a page, and the pages that may name such a thing."""


@pytest.mark.parametrize(
    ("check", "page"),
    [(name, page) for name, (marker, _) in CHECKS.items() for page in pages(marker)],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_everything_that_a_page_names_exists(check: str, page: Path) -> None:
    assert list(CHECKS[check][1](page)) == []


VLLMS_MESSAGES = "vllm-messages.md"
"""The page that quotes vLLM."""


def test_nothing_is_installed_by_a_name_that_is_on_no_index() -> None:
    """The package is installed from a checkout, with extras that it has."""
    texts = [*PAGES, *(ROOT / "cli").rglob("*.py")]
    named = [
        (name_of(path), what)
        for path in texts
        for what in re.findall(r"pip install '?([^'\s`]+)", path.read_text(encoding="utf-8"))
        if path.name != VLLMS_MESSAGES
    ]
    assert named
    assert [one for one in named if not one[1].startswith((".[", "./"))] == []
    extras = {extra for _, what in named for extra in re.findall(r"\[([\w,]+)\]", what)[0].split(",")}
    assert extras <= EXTRAS


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", text)] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`{name}`" not in readme and f"llmservice {name}" not in readme] == []


@pytest.mark.parametrize("page", pages("```sh"), ids=name_of)
def test_every_command_is_tried_or_says_what_it_needs(page: Path) -> None:
    """llmservice and make above, kubectl and Helm in tests/contract/test_page_commands.py; others are listed."""
    unknown = [
        line
        for block, needs in shell_blocks(page)
        for line, _ in statements(block)
        if not needs and not _ASSIGNMENT.match(line) and line.split()[0] not in (*TRIED, *OTHERS)
    ]
    assert unknown == []


def test_the_page_of_scaling_makes_certificates_that_each_side_takes(tmp_path: Path) -> None:
    (block,) = (block for block, _ in shell_blocks(ROOT / "docs/serving/scaling.md") if "openssl" in block)
    made = block.partition("kubectl ")[0]
    subprocess.run(["bash", "-euo", "pipefail", "-c", made], cwd=tmp_path, check=True, capture_output=True)
    for side, purpose in (("server", "sslserver"), ("client", "sslclient")):
        command = ["openssl", "verify", "-CAfile", "ca.crt", "-purpose", purpose, f"{side}.crt"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    printed = ["openssl", "x509", "-in", "server.crt", "-noout", "-checkhost"]
    host = "llmservice-operator-activator.llmservice-system.svc"
    done = subprocess.run([*printed, host], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "does match certificate" in done.stdout


def test_marks_and_exceptions_mean_something() -> None:
    blocks = [(block, needs) for page in pages("```sh") for block, needs in shell_blocks(page)]
    assert {what for _, needs in blocks for what in needs} <= NEEDS
    marked = sum(len(re.findall(r"^ *<!-- needs:", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in PAGES)
    assert len([needs for _, needs in blocks if needs]) == marked
    used = {line.split()[0] for block, needs in blocks if not needs for line, _ in statements(block)}
    assert set(OTHERS) - used == set()


def test_commands_are_found() -> None:
    """Without comments, pipes, prompts and line ends."""
    found = [words for page in PAGES if "cli" in page.parts for words in commands_of(page)]
    assert ["llmservice", "plan", "-f", "llmservice.yaml"] in found
    assert ["llmservice", "plan", "--batch", "cases.jsonl"] in found
    assert shlex.join(["llmservice", "rollback", "chat"]) in {shlex.join(words) for words in found}
