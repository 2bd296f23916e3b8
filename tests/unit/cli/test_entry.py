"""What every command has in common: help, exit codes, and an installation without the extra."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from llmservice_cli import app
from llmservice_cli.errors import complain
from llmservice_cli.help import asks_for_help
from llmservice_cli.probe import Mode

from tests.unit.cli_world import Command, Ran

WITHOUT_HTTPX = "import sys; sys.modules['httpx'] = None; from llmservice_cli.__main__ import main; sys.exit(main())"

CEL = "cel_expr_python"
"""14 MB of C++, for the commands that check manifests."""


def in_a_process(*words: str) -> Ran:
    done = subprocess.run([sys.executable, "-W", "error", *words], capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--help", ["plan", "status", "bench", "exit codes"]),
        ("plan --help", ["examples:", "--max-model-len", "--batch", "--explain", "exit codes:"]),
        ("render --help", ["examples:", "--config", "exit codes:"]),
        ("diff --help", ["examples:", "--context", "Rights:", "exit codes"]),
        ("status --help", ["examples:", "--context", "pods/proxy"]),
        ("bench --help", ["examples:", "--discipline", "static", "services/proxy"]),
    ],
)
def test_help_has_examples_and_the_rights_that_are_needed(words: str, shown: list[str], llmservice: Command) -> None:
    ran = llmservice(*words.split())
    assert (ran.code, ran.err, [word for word in shown if word not in ran.out]) == (0, "", [])


NAME_ONE = "name one with --kubeconfig"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("plant", 2, "no such command 'plant'. (Did you mean one of: 'explain', 'plan'?)"),
        ("status --wach", 2, "no such option '--wach'. Did you mean '--watch'?"),
        ("top a b", 2, "got unexpected extra argument (b)"),
        ("wait", 2, "missing argument 'NAME'"),
        ("ui --port 65536", 2, "must be an integer of at least 0 and at most 65535, not '65536'"),
        ("bench a --seed x", 2, "invalid value for '--seed': must be an integer, not 'x'"),
        ("probe a --mode x", 2, "'x' is not one of 'stream-pooled', 'stream-fresh'"),
        ("status chat", 1, f"what to do: {NAME_ONE}"),
        ("wait chat", 2, f"what to do: {NAME_ONE}"),
        ("diff -f examples/smallest.yaml", 2, NAME_ONE),
        ("plan", 2, "there is nothing to plan"),
        ("render", 2, "missing option '--file' / '-f'"),
        ("bench", 2, "NAME or by --url"),
        ("probe", 2, "NAME or by --url"),
        ("probe a --url http://b", 2, "NAME or by --url"),
        ("probe --url http://b --image c", 2, "--image is of the pod"),
        ("probe a --api-key-env B", 2, "spec.endpoint.apiKeySecretRef"),
        ("probe a -o json --rows", 2, "give one of them"),
        ("probe a --rate x", 2, "must be a number above 0 and of at most 100000, not 'x'"),
        ("probe a --output-tokens 8,", 2, "integer of at least 1 and at most 10000000, not ''"),
        ("probe a --rate 1 --concurrency 1", 2, "--rate and --concurrency are two ways"),
        ("probe a --duration soon", 2, "is not a length of time"),
        ("probe a --retries -1", 2, "integer of at least 0, not '-1'"),
        ("bench a --rate inf", 2, "must be a number above 0 and of at most 100000, not 'inf'"),
        ("bench a --rate -1", 2, "must be a number above 0 and of at most 100000, not '-1'"),
        ("bench a --discipline magic", 2, "'magic' is not one of"),
    ],
)
def test_what_goes_wrong_is_one_message(
    words: str, code: int, message: str, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/kubeconfig")
    ran = llmservice(*words.split())
    assert (ran.code, ran.out, message in ran.err, "Traceback" in ran.err) == (code, "", True, False)


def test_a_line_has_the_types_of_the_options() -> None:
    line = "plan --max_model_len 4K --gpu L4 --gpu=T4 --picture a.svg --no-enable-lora"
    plan = app.options_of(line.split())
    assert (plan.max_model_len, plan.gpu, plan.picture) == ("4K", ["L4", "T4"], Path("a.svg"))
    assert (plan.enable_lora, plan.enforce_eager, plan.strict, plan.output) == (False, None, False, "table")
    assert app.options_of(["plan"]).gpu is None
    assert app.options_of(["probe", "a", "--mode", "stream-fresh"]).mode == [Mode.STREAM_FRESH]
    assert app.options_of(["wait", "a", "--timeout", "2m"]).timeout == 120
    assert app.options_of(["status", "a", "b"]).names == ["a", "b"]
    assert app.options_of(["bench", "a", "--seed", "0"]).given == {"name", "seed"}


def test_each_command_is_a_folder_and_a_line() -> None:
    folders = sorted(path.parent.name for path in Path(app.__file__).parent.glob("*/command.py"))
    assert folders == list(app.COMMANDS)
    ran = in_a_process("-m", "llmservice_cli", "--help")
    assert (ran.code, ran.err) == (0, "")
    assert sorted(re.findall(r"^  ([a-z]+) ", ran.out, re.MULTILINE)) == list(app.COMMANDS) == sorted(app.COMMANDS)
    assert {"bench", "plan", "wait"} < set(app.COMMANDS)
    assert "load" not in app.COMMANDS


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ("--help", ("aiohttp", "httpx", "pydantic", "rich", CEL)),
        ("status --help", ("aiohttp", "httpx", "pydantic", "rich")),
        ("status -A --kubeconfig none", ("aiohttp", "httpx", "prometheus_client", "pydantic", CEL)),
        ("top --kubeconfig none", ("aiohttp", "httpx", "prometheus_client", "pydantic", CEL)),
        ("logs chat --kubeconfig none", ("aiohttp", "httpx", "pydantic", CEL)),
        ("update chat --kubeconfig none", ("aiohttp", "httpx", "pydantic", CEL)),
        ("wait chat --kubeconfig none", ("aiohttp", "httpx", "pydantic", CEL)),
        ("probe --url http://127.0.0.1:9 --for 1", ("aiohttp", "pydantic")),
        ("plan --parameters 7B --gpu L4", ("aiohttp", "httpx", CEL)),
        ("render -f examples/smallest.yaml", ("aiohttp", "httpx")),
    ],
)
def test_what_a_command_does_not_need_is_not_imported(words: str, unused: tuple[str, ...]) -> None:
    """A third of a second each: `plan` answers a thousand times in a build."""
    report = f"import atexit, sys; atexit.register(lambda: print([m for m in {unused!r} if m in sys.modules]))"
    code = f"{report}; from llmservice_cli.__main__ import main; sys.exit(main())"
    ran = in_a_process("-c", code, *words.split())
    assert ran.out.splitlines()[-1] == "[]", ran.err


def test_without_the_extra_the_message_names_it() -> None:
    ran = in_a_process("-c", WITHOUT_HTTPX, "bench")
    remedy = "pip install '.[cli]' in a checkout of llmservice-operator"
    assert (ran.code, ran.err) == (1, f"error: httpx is not installed\n  what to do: {remedy}\n")


@pytest.mark.parametrize(
    ("words", "is_asked"),
    [
        ("chat qwen --help", True),
        ("chat -h", True),
        ("chat qwen -m -h", False),
        ("chat qwen --message --help", False),
        ("chat -- --help", False),
        ("status -w -h", True),
    ],
)
def test_a_value_is_not_taken_for_a_wish_for_help(words: str, is_asked: bool) -> None:
    name, *rest = words.split()
    assert asks_for_help(rest, app.command(name).params) is is_asked


def test_what_a_server_said_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    complain("it says \x1b]0;owned\x07 yes\n  what to do: nothing")
    assert capsys.readouterr().err == "error: it says  ]0;owned  yes\n  what to do: nothing\n"
