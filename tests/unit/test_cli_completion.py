"""What a shell completes: commands, options, their words, and names of services of the cluster that a line names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from llmservice_cli import kubectl_completion
from llmservice_cli.app import COMPLETE

from tests.support.http_servers import cluster

from .api_server import ApiServer, llmservice
from .cli_world import Command

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
    assert kubectl_completion.main() == 0
    *candidates, ending = capsys.readouterr().out.splitlines()
    assert ending == ":4"
    return [candidate.partition("\t")[0] for candidate in candidates]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ro",), ["rollback"]),
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


def test_nothing_where_no_cluster_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    assert completed(monkeypatch, capsys, "wait", "") == []


async def test_names_of_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the script that bash runs, in a process of its own."""
    api = ApiServer(*(llmservice(name, 5, namespace="team") for name in ("chat", "x")))
    async with cluster(api.answer, tmp_path, monkeypatch):
        import asyncio

        line = {"COMP_WORDS": "llmservice wait -n team c", "COMP_CWORD": "4", COMPLETE: "complete_bash"}
        patient = "from llmservice_cli import names; names.PATIENCE = 60"  # a busy machine imports for seconds
        code = f"import os; os.environ.update({line!r}); {patient}; from llmservice_cli.__main__ import main; main()"
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert done.stdout.split() == ["chat"], done.stderr
