"""What commands print: nothing that a terminal would obey, and one message where nothing can be printed."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import llmservice_cli
import pytest
import yaml
from llmservice_cli.documents import in_a_line, show, tell, written
from llmservice_cli.errors import say
from llmservice_cli.probe.report import Gathered, mark_by_lines
from llmservice_cli.terminal import show as show_rows

from tests.support.patience import PATIENCE

ESCAPES = "a\x1b]0;pwned\x07b\x9b2Jc\x7fd\udc80"


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_nothing_that_a_terminal_obeys_is_printed(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(output, lambda: [f"told: {ESCAPES}"], lambda: {"told": ESCAPES})
    said = capsys.readouterr().out
    assert not {character for character in said if not character.isprintable()} - {"\n"}
    assert "pwned" in said


def test_json_is_read_back_as_it_was() -> None:
    assert json.loads(written("json", {"told": ESCAPES})) == {"told": ESCAPES}
    assert yaml.safe_load(written("yaml", {"told": "ü\n1"})) == {"told": "ü\n1"}


def test_each_way_out_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    for way in (tell, say, lambda text: show_rows([((text, "dim"),)]), lambda text: tell(in_a_line({"told": text}))):
        way(ESCAPES)
        said = "".join(capsys.readouterr())
        assert not {character for character in said if not character.isprintable()} - {"\n"}
        assert "pwned" in said
    assert json.loads(in_a_line({"told": ESCAPES})) == {"told": ESCAPES}


CLI = Path(llmservice_cli.__file__).parent
PRINTS = {
    "documents.py", "errors.py", "terminal.py",  # the ways out
    "chat/command.py", "render/preview.py",  # cleaned there, for the colours around it
    "__main__.py", "app.py", "help.py", "reference.py", "shell_completion.py",  # words of this program alone
}  # fmt: skip


WRITERS = ("print", "sys.stdout.write", "sys.stderr.write")


def test_no_other_module_prints() -> None:
    found: set[str] = set()
    for path in CLI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITERS:
                found.add(str(path.relative_to(CLI)))
    assert found == PRINTS


def test_no_other_module_writes_json_that_a_terminal_obeys() -> None:
    modules = (path for path in CLI.rglob("*.py") if "ensure_ascii=False" in path.read_text())
    assert {str(path.relative_to(CLI)) for path in modules} == {"documents.py", "explain/command.py"}


PLAN = [sys.executable, "-m", "llmservice_cli", "plan", "--parameters", "7B", "--gpu", "L4"]


def test_a_terminal_that_takes_no_utf8_gets_escapes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(PLAN, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3)
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[*PLAN, "-o", "json"], [*PLAN[:3], "--help"]], ids=["plan", "help"])
def test_a_disk_that_is_full_is_one_message(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", [[*PLAN, "-o", "json"], [*PLAN[:3], "--help"]], ids=["plan", "help"])
def test_a_reader_that_has_seen_enough_ends_nothing_badly(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("words", ["plan --parameters 7B --gpu L4", "explain"])
def test_an_output_that_is_closed_is_no_defect(words: str, closed: str) -> None:
    line = f'"{sys.executable}" -W error -m llmservice_cli {words}'
    run = partial(subprocess.run, shell=True, capture_output=True, text=True, check=False)
    usual, done = run(line), run(f"{line} {closed}")
    assert (done.returncode, done.stdout) == (usual.returncode, "" if ">&-" in closed.split() else usual.stdout)
    assert done.stderr == ("" if "2>&-" in closed else usual.stderr)


CLOSED = "standard input cannot be read: it is closed"
WITHOUT_INPUT = {
    # Without standard input: the exit code, and how the message begins; None: the same as with an empty one.
    "plan -f -": (2, f"error: -f: {CLOSED}"),
    "plan --config - --gpu L4": (2, f"error: --config: {CLOSED}"),
    "plan --batch -": (2, f"error: --batch: {CLOSED}"),
    "render -f -": (2, f"error: -f: {CLOSED}"),
    "diff -f -": (2, f"error: -f: {CLOSED}"),
    "chat --url http://127.0.0.1:9/v1": (2, f"error: --message: {CLOSED}"),
    "init": (2, "error: NAME and --model must be given"),
    "probe --url http://127.0.0.1:9/v1": None,
    "status": None,
    "plan --parameters 7B --gpu L4": None,
    "explain": None,
}


@pytest.mark.parametrize("words", WITHOUT_INPUT)
def test_an_input_that_is_closed_is_no_defect(words: str, tmp_path: Path) -> None:
    line = f'"{sys.executable}" -W error -m llmservice_cli {words}'
    environment = os.environ | {"KUBECONFIG": str(tmp_path / "none")}
    run = partial(subprocess.run, shell=True, capture_output=True, text=True, check=False, env=environment)
    done, expected = run(f"{line} <&-"), WITHOUT_INPUT[words]
    if expected is None:
        usual = run(f"{line} </dev/null")
        assert (done.returncode, done.stdout, done.stderr) == (usual.returncode, usual.stdout, usual.stderr)
        return
    assert (done.returncode, done.stdout) == (expected[0], "")
    assert done.stderr.startswith(expected[1])
    assert done.stderr.count("\n") <= 2


def test_an_input_that_is_closed_has_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(asyncio.new_event_loop()) as loop, Path(os.devnull).open("w") as unreadable:
        monkeypatch.setattr("sys.stdin", unreadable)
        mark_by_lines(gathered := Gathered(None, None), loop)
        for thread in threading.enumerate():
            if thread.name == "marks":
                thread.join(PATIENCE)
    assert not gathered.marks


@pytest.mark.parametrize("words", ["plan --batch -", "chat --url http://127.0.0.1:9/v1", "plan -f -"])
def test_an_input_that_is_no_text_is_no_defect(words: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    line = [sys.executable, "-m", "llmservice_cli", *words.split()]
    done = subprocess.run(line, input=b"\xff\n", env=environment, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
