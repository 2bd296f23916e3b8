"""What a shell completes: commands, options, their words, and names of services of the cluster that a line names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from llmservice_cli import shell_completion
from llmservice_cli.app import COMPLETE

from tests.support.http_servers import cluster
from tests.unit.api_server import ApiServer, llmservice
from tests.unit.cli_world import Command

FISH = "_TYPER_COMPLETE_FISH_ACTION"
MODEL = "hf://ORG/NAME[@REVISION], ORG/NAME, s3://, gs:// or az://BUCKET/PREFIX, or a folder"
SCRIPTS = {"bash": "complete -o default -F", "zsh": "#compdef llmservice", "fish": "complete --command llmservice"}


@pytest.mark.parametrize(("shell", "line"), SCRIPTS.items())
def test_the_script_of_each_shell(shell: str, line: str, llmservice: Command) -> None:
    ran = llmservice("completion", shell)
    assert (ran.code, line in ran.out, f"{COMPLETE}=complete_{shell}" in ran.out) == (0, True, True)


def test_an_unknown_shell_is_refused(llmservice: Command) -> None:
    ran = llmservice("completion", "tcsh")
    assert (ran.code, "'tcsh' is not one of 'bash', 'zsh', 'fish'" in ran.err) == (2, True)


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Candidates, as kubectl asks for them; the last line says that no file names follow."""
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-llmservice", *words])
    assert shell_completion.kubectl() == 0
    *candidates, ending = capsys.readouterr().out.splitlines()
    assert ending == ":4"
    return [candidate.partition("\t")[0] for candidate in candidates]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ro",), ["rollback"]),
        (("--version", "ro"), ["rollback"]),
        (("status", "--all"), ["--all-namespaces"]),
        (("status", "-o", ""), ["table", "json", "yaml"]),
        (("wait", "--for", "A"), ["Available", "Accepted"]),
    ],
)
def test_commands_options_and_words(
    words: tuple[str, ...],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert completed(monkeypatch, capsys, *words) == expected


def test_where_a_file_is_named_kubectl_completes_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-llmservice", "report", "--out", "re"])
    assert (shell_completion.kubectl(), capsys.readouterr().out) == (0, ":0\n")


ASKED: list[tuple[str, str, Mapping[str, str], int, str]] = [
    ("bash", "wait --for A", {}, 0, "Available\nAccepted\n"),
    ("bash", "report --out re", {}, 0, "\n"),
    ("zsh", "status --all", {}, 0, """_arguments '*: :(("--all-namespaces":"of all namespaces"))'\n"""),
    ("zsh", "report --out ", {}, 0, "_files\n"),
    ("zsh", "chat --sys", {}, 0, """_arguments '*: :(("--system":"the system message"))'\n"""),
    ("fish", "status --all", {FISH: "get-args"}, 0, "--all-namespaces\tof all namespaces\n"),
    ("fish", "wait --for A", {FISH: "is-args"}, 0, ""),
    ("fish", "report --out ", {FISH: "is-args"}, 1, ""),
    ("fish", "plan --mod", {FISH: "get-args"}, 0, f"--model\t{MODEL}\n"),
]


@pytest.mark.parametrize(("shell", "line", "more", "code", "said"), ASKED)
def test_what_the_script_of_each_shell_asks(
    shell: str,
    line: str,
    more: Mapping[str, str],
    code: int,
    said: str,
    llmservice: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = f"llmservice {line}"
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_TYPER_COMPLETE_ARGS": line}
    for name, value in {**asked, **more, COMPLETE: f"complete_{shell}"}.items():
        monkeypatch.setenv(name, value)
    ran = llmservice()
    assert (ran.code, ran.out, ran.err) == (code, said, "")


def test_nothing_where_no_cluster_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    assert completed(monkeypatch, capsys, "wait", "") == []


async def test_names_of_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the script that bash runs, in a process of its own."""
    api = ApiServer(*(llmservice(name, 5, namespace="team") for name in ("chat", "x")))
    async with cluster(api.answer, tmp_path, monkeypatch):
        import asyncio

        line = {"COMP_WORDS": "llmservice wait -n team c", "COMP_CWORD": "4", COMPLETE: "complete_bash"}
        patient = "from llmservice_cli import options; options.PATIENCE = 60"  # a busy machine imports for seconds
        code = f"import os; os.environ.update({line!r}); {patient}; from llmservice_cli.__main__ import main; main()"
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert done.stdout.split() == ["chat"], done.stderr
