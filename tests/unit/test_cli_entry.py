"""What every command has in common: help, exit codes, and an installation without the extra."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from llmservice_cli import app
from llmservice_cli.__main__ import main

WITHOUT_HTTPX = "import sys; sys.modules['httpx'] = None; from llmservice_cli.__main__ import main; sys.exit(main())"
Ran = tuple[int, str, str]
"""Exit code, standard output, standard error."""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """A command as its entry point runs it, in this process: a process of its own takes a second."""
    monkeypatch.setenv("KUBECONFIG", "/no/such/kubeconfig")

    def ran(*words: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["llmservice", *words])
        try:
            code = int(main())
        except SystemExit as ended:
            code = int(ended.code or 0)
        return (code, *capsys.readouterr())

    return ran


def in_a_process(*words: str) -> Ran:
    done = subprocess.run([sys.executable, "-W", "error", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_it_is_a_module_that_imports_without_a_warning() -> None:
    code, out, errors = in_a_process("-m", "llmservice_cli", "--help")
    assert (code, errors) == (0, "")
    assert "exit codes" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("--help",), ["plan", "status", "bench", "exit codes"], id="llmservice"),
        pytest.param(
            ("plan", "--help"),
            ["examples:", "--max-model-len", "--batch", "--explain", "exit codes:"],
            id="plan",
        ),
        pytest.param(("render", "--help"), ["examples:", "--config", "exit codes:"], id="render"),
        pytest.param(("diff", "--help"), ["examples:", "--context", "Rights:", "exit codes"], id="diff"),
        pytest.param(("status", "--help"), ["examples:", "--context", "pods/proxy"], id="status"),
        pytest.param(("bench", "--help"), ["examples:", "--discipline", "static", "services/proxy"], id="bench"),
    ],
)
def test_help_has_examples_and_the_rights_that_are_needed(
    cli: Callable[..., Ran], words: tuple[str, ...], said: list[str]
) -> None:
    code, out, errors = cli(*words)
    assert (code, errors) == (0, "")
    for word in said:
        assert word in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param((), 2, "COMMAND", id="no command"),
        pytest.param(("plant",), 2, "invalid choice", id="unknown command"),
        pytest.param(("status", "chat"), 1, "what to do: name one with --kubeconfig", id="no kubeconfig"),
        pytest.param(("wait", "chat"), 2, "what to do: name one with --kubeconfig", id="wait: no kubeconfig"),
        pytest.param(("plan",), 2, "there is nothing to plan", id="no model"),
        pytest.param(("render",), 2, "-f/--file", id="render: no file"),
        pytest.param(
            ("diff", "-f", "examples/smallest.yaml"), 2, "name one with --kubeconfig", id="diff: no kubeconfig"
        ),
        pytest.param(("bench",), 2, "NAME or by --url", id="bench: no server"),
        pytest.param(("probe",), 2, "NAME or by --url", id="probe: no server"),
        pytest.param(("probe", "a", "--url", "http://b"), 2, "NAME or by --url", id="probe: two servers"),
        pytest.param(("probe", "--url", "http://b", "--image", "c"), 2, "--image is of the pod", id="no pod"),
        pytest.param(("probe", "a", "--api-key-env", "B"), 2, "spec.endpoint.apiKeySecretRef", id="the service's key"),
        pytest.param(("probe", "a", "--json", "--rows"), 2, "give one of them", id="two outputs"),
        pytest.param(("probe", "a", "--rate", "x"), 2, "must be a number above 0, not 'x'", id="no number"),
        pytest.param(("probe", "a", "--output-tokens", "8,"), 2, "integer of at least 1, not ''", id="no length"),
        pytest.param(("probe", "a", "--rate", "1", "--concurrency", "1"), 2, "not allowed with", id="two paces"),
        pytest.param(("probe", "a", "--duration", "soon"), 2, "is not a length of time", id="no duration"),
        pytest.param(("probe", "a", "--retries", "-1"), 2, "integer of at least 0, not '-1'", id="no retries"),
        pytest.param(("probe", "a", "--mode", "magic"), 2, "invalid choice: 'magic'", id="no mode"),
        pytest.param(("bench", "a", "--batch", "0"), 2, "integer of at least 1, not '0'", id="too few"),
        pytest.param(("bench", "a", "--rate", "inf"), 2, "must be a number above 0, not 'inf'", id="endless rate"),
        pytest.param(("bench", "a", "--rate", "-1"), 2, "must be a number above 0, not '-1'", id="negative rate"),
        pytest.param(("bench", "a", "--discipline", "magic"), 2, "invalid choice: 'magic'", id="no discipline"),
        pytest.param(("update",), 2, "give NAMEs or --all", id="no service"),
        pytest.param(("update", "a", "--all"), 2, "give NAMEs or --all", id="one and all"),
    ],
)
def test_what_goes_wrong_is_one_message(cli: Callable[..., Ran], words: tuple[str, ...], code: int, said: str) -> None:
    ended, out, errors = cli(*words)
    assert (ended, out) == (code, "")
    assert said in errors
    assert "Traceback" not in errors


def test_a_command_is_its_folder_and_nothing_else() -> None:
    """`llmservice --help` has a line for each, and app.py names none of them."""
    source = Path(app.__file__).read_text(encoding="utf-8")
    assert [name for name in app.COMMANDS if re.search(rf"\b{name}\b", source)] == []
    _, out, _ = in_a_process("-m", "llmservice_cli", "--help")
    assert re.findall(r"^    (\w+) ", out, re.MULTILINE) == list(app.COMMANDS) == sorted(app.COMMANDS)
    assert {"bench", "plan", "wait"} < set(app.COMMANDS)
    assert "load" not in app.COMMANDS


@pytest.mark.parametrize(
    ("words", "left"),
    [
        pytest.param(("--help",), ("aiohttp", "httpx", "kubernetes", "pydantic"), id="llmservice"),
        pytest.param(("status", "--help"), ("kubernetes",), id="a command's help"),
        pytest.param(("plan", "--parameters", "7B", "--gpu", "L4"), ("aiohttp", "httpx", "kubernetes"), id="plan"),
        pytest.param(("render", "-f", "examples/smallest.yaml"), ("aiohttp", "httpx", "kubernetes"), id="render"),
    ],
)
def test_what_a_command_does_not_need_is_not_imported(words: tuple[str, ...], left: tuple[str, ...]) -> None:
    """A third of a second each: `plan` answers a thousand times in a build."""
    report = f"import atexit, sys; atexit.register(lambda: print([m for m in {left!r} if m in sys.modules]))"
    _, out, errors = in_a_process("-c", f"{report}; from llmservice_cli.__main__ import main; sys.exit(main())", *words)
    assert out.splitlines()[-1] == "[]", errors


def test_without_the_extra_the_message_names_it() -> None:
    code, _, errors = in_a_process("-c", WITHOUT_HTTPX, "bench")
    remedy = "pip install '.[cli]' in a checkout of llmservice-operator"
    assert (code, errors) == (1, f"error: httpx is not installed\n  what to do: {remedy}\n")
