"""What every command has in common: help, exit codes, and an installation without the extra."""

import os
import subprocess
import sys

import pytest

WITHOUT_HTTPX = "import sys; sys.modules['httpx'] = None; from llmservice_cli.__main__ import main; sys.exit(main())"


def cli(*words: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "llmservice_cli"]
    env = {**os.environ, "KUBECONFIG": "/no/such/kubeconfig", **environ}
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *words], capture_output=True, text=True, env=env, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("--help",), ["plan", "status", "bench", "exit codes"], id="llmservice"),
        pytest.param(("plan", "--help"), ["examples:", "--max-model-len", "exit codes:"], id="plan"),
        pytest.param(("status", "--help"), ["examples:", "--context", "pods/proxy"], id="status"),
        pytest.param(("bench", "--help"), ["examples:", "--discipline", "static", "services/proxy"], id="bench"),
    ],
)
def test_help_has_examples_and_the_rights_that_are_needed(words: tuple[str, ...], said: list[str]) -> None:
    done = cli(*words)
    assert (done.returncode, done.stderr) == (0, "")
    for word in said:
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param((), 2, "COMMAND", id="no command"),
        pytest.param(("plant",), 2, "invalid choice", id="unknown command"),
        pytest.param(("status", "chat"), 1, "what to do: name one with --kubeconfig", id="no kubeconfig"),
        pytest.param(("wait", "chat"), 2, "what to do: name one with --kubeconfig", id="wait: no kubeconfig"),
        pytest.param(("plan",), 2, "there is nothing to plan", id="no model"),
        pytest.param(("bench",), 2, "NAME or by --url", id="bench: no server"),
        pytest.param(("probe",), 2, "NAME or by --url", id="probe: no server"),
        pytest.param(("probe", "a", "--url", "http://b"), 2, "NAME or by --url", id="probe: two servers"),
        pytest.param(("probe", "--url", "http://b", "--image", "c"), 2, "--image is of the pod", id="no pod"),
        pytest.param(("probe", "a", "--api-key-env", "B"), 2, "spec.endpoint.apiKeySecretRef", id="the service's key"),
        pytest.param(("probe", "a", "--json", "--rows"), 2, "give one of them", id="two outputs"),
        pytest.param(("probe", "a", "--rate", "x"), 2, "has to be a number above 0, not 'x'", id="no number"),
        pytest.param(("probe", "a", "--output-tokens", "8,"), 2, "whole number from 1 on, not ''", id="no length"),
        pytest.param(("bench", "a", "--batch", "0"), 2, "whole number from 1 on, not '0'", id="too few"),
        pytest.param(("update",), 2, "give NAMEs or --all", id="no service"),
        pytest.param(("update", "a", "--all"), 2, "give NAMEs or --all", id="one and all"),
    ],
)
def test_what_goes_wrong_is_one_message(words: tuple[str, ...], code: int, said: str) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "left"),
    [
        pytest.param(("--help",), ("aiohttp", "httpx", "kubernetes", "pydantic"), id="llmservice"),
        pytest.param(("status", "--help"), ("kubernetes",), id="a command's help"),
        pytest.param(("plan", "--parameters", "7B", "--gpu", "L4"), ("aiohttp", "httpx", "kubernetes"), id="plan"),
    ],
)
def test_what_a_command_does_not_need_is_not_imported(words: tuple[str, ...], left: tuple[str, ...]) -> None:
    """A third of a second each: `plan` answers a thousand times in a build."""
    report = f"import atexit, sys; atexit.register(lambda: print([m for m in {left!r} if m in sys.modules]))"
    done = cli(*words, code=f"{report}; from llmservice_cli.__main__ import main; sys.exit(main())")
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_without_the_extra_the_message_names_it() -> None:
    done = cli("bench", code=WITHOUT_HTTPX)
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: httpx is not installed\n  what to do: pip install '.[cli]' in a checkout of llmservice-operator\n"
    )
