"""The line that was typed, the command that it names, and one message for an error.

A command is a folder, and a line of `SUMMARIES`. Its __init__.py has DESCRIPTION, EPILOG and `Options`, a frozen
dataclass whose fields are its options; it imports nothing that is slow. Its command.py has `run(options)`, which gives
an exit code or a coroutine of one.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO, get_type_hints

import click
from click.core import ParameterSource

from .errors import CliError, ExitCode, complain
from .help import Command, Group
from .options import Given
from .parameters import parameter

DESCRIPTION = "Check LLMServices before they run, see how they are, measure them, and change what they run."
EPILOG = """\
exit codes:
  0    done, or the answer is yes
  1    failed, and the message says what to do; or the answer is no
  2    wrong arguments or input
  3    not known, or not every request was answered
  130  interrupted

llmservice COMMAND --help says more.
"""
SUMMARIES: Mapping[str, Mapping[str, str]] = {
    "before it runs": {
        "diff": "what the operator would change in a cluster for a manifest, and what would restart",
        "init": "print a manifest to begin with, planned for what the cluster has; asks on a terminal",
        "plan": "say before anything runs whether it fits: memory, longest request, concurrency, remedies",
        "render": "the objects that the operator would make of a manifest, without a cluster",
    },
    "while it runs": {
        "chat": "chat with a served model in the terminal",
        "history": "list the recorded revisions of a service, and what changed with each",
        "logs": "the log of a service's pods: the supervisor's and vLLM's lines, told apart",
        "status": "show conditions, remedies, start, pods and live figures of a service",
        "top": "show tokens/s, requests, cache use and latencies of services, live",
        "ui": "open the web page of the fleet in a browser, signed in as you",
        "wait": "wait until a service is Ready, or cannot become it",
    },
    "change what runs": {
        "rollback": "return a service to a recorded revision, or undo that",
        "update": "roll out what waits for a service's next rollout",
    },
    "measure": {
        "advise": "whether routing requests by their prefix would pay, from what the replicas cached",
        "bench": "measure a server: three disciplines, sweeps of the load, goodput; compare results",
        "probe": "send constant load and account for every lost request, for example during a rollout",
    },
    "the cluster and this program": {
        "completion": "print what completes commands, options and names of services in a shell",
        "doctor": "check a cluster before and after installing; each finding has its remedy",
        "explain": "explain a reason, a condition or a field: meaning, remedy, flag, default",
        "report": "bundle what a bug report needs: objects, Events, logs, metrics; secrets are taken out",
    },
}
"""Of the commands, by group, as `llmservice --help` lists them: none is imported for that."""
COMMANDS = tuple(sorted(name for commands in SUMMARIES.values() for name in commands))
COMPLETE = "_LLMSERVICE_COMPLETE"
"""The variable by which a shell asks for completion."""


class Parsed(NamedTuple):
    """What a line asks for."""

    command: str
    options: Any
    """The Options of the command."""


class Commands(Group):
    """All commands; what one needs is imported once it is named."""

    def __init__(self, **settings: Any) -> None:
        self.lines = {
            name: Command(name, short_help=summary, group=group)
            for group, commands in SUMMARIES.items()
            for name, summary in commands.items()
        }
        super().__init__(commands=dict(self.lines), **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command(cmd_name) if cmd_name in self.lines else None


def command(name: str) -> Command:
    """One command, with its Options as click's parameters."""
    package = import_module(f"{__package__}.{name}")
    hints = get_type_hints(package.Options, include_extras=True)

    def parsed(**values: Any) -> Parsed:
        if issubclass(package.Options, Given):
            context = click.get_current_context()
            typed = ParameterSource.COMMANDLINE
            values["given"] = frozenset(one for one in values if context.get_parameter_source(one) is typed)
        return Parsed(name, package.Options(**values))

    return Command(
        name,
        params=[parameter(field, hints[field.name]) for field in _fields(package.Options)],
        callback=parsed,
        help=package.DESCRIPTION,
        epilog=package.EPILOG,
        usage=getattr(package, "USAGE", ""),
        context_settings={"token_normalize_func": _normalized, "help_option_names": ["-h", "--help"]},
    )


def _fields(options: type) -> list[dataclasses.Field[Any]]:
    """A command's own come first, then those that it has in common with others."""
    known = (field for field in dataclasses.fields(options) if field.name != "given")
    return sorted(known, key=lambda field: field.name not in options.__annotations__)


def _normalized(token: str) -> str:
    """--max_model_len is --max-model-len, as vLLM takes it."""
    return token.replace("_", "-")


def whole() -> Commands:
    """All of it."""
    version = click.Option(
        ["--version"],
        help="print the version and end",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_version,
    )
    return Commands(
        params=[version], help=DESCRIPTION, epilog=EPILOG, subcommand_metavar="COMMAND ...", add_help_option=False
    )


def _version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        from llmservice_operator.options import version

        print(version())
        context.exit()


def parse(words: Sequence[str]) -> Parsed | int:
    """What a line asks for; the exit code of one that is answered already, such as --help. ClickException for one that
    is wrong."""
    as_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    commands = whole()
    try:
        with commands.make_context("kubectl llmservice" if as_plugin else "llmservice", list(words)) as context:
            found: Parsed = commands.invoke(context)
            return found
    except click.exceptions.Exit as ended:
        return ended.exit_code


def options_of(words: Sequence[str]) -> Any:
    """The Options of a line that names a command and does not ask for help."""
    asked = parse(words)
    assert not isinstance(asked, int), words
    return asked.options


def start(asked: Parsed) -> Any:
    """The exit code of a command, or a coroutine of one."""
    return import_module(f"{__package__}.{asked.command}.command").run(asked.options)


def run(argv: Sequence[str] | None = None) -> int:
    """One command; an error is one message on standard error."""
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout, sys.stderr = sys.stdout or _nowhere("w"), sys.stderr or _nowhere("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal takes UTF-8
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, and not at Python's end, what cannot be written is an error of ours
    except click.ClickException as refused:
        path = getattr(getattr(refused, "ctx", None), "command_path", "llmservice")
        complain(f"{_sentence(refused.format_message())}\n  what to do: see {path} --help")
        return ExitCode.USAGE
    except CliError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _write_no_more()  # the reader (head, less) has seen enough
        return ExitCode.DONE
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _write_no_more()
        complain(f"the output cannot be written: {error.strerror}\n  what to do: free space, or write it elsewhere")
        return ExitCode.FAILED
    return code


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    """In place of an input or output that was closed before the start, which Python has as None. Reading it fails."""
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), mode, encoding="utf-8", closefd=False)


def _write_no_more() -> None:
    """Python would complain once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> int:
    if question := os.environ.get(COMPLETE):
        from . import shell_completion

        return shell_completion.answer(question)
    asked = parse(argv)
    if isinstance(asked, int):
        return asked
    answer = start(asked)
    if isinstance(answer, ExitCode):
        return answer
    import asyncio  # a command that waits for nobody starts sooner without it

    code: ExitCode = asyncio.run(answer)
    return code


def _sentence(message: str) -> str:
    """As the other errors are written."""
    return f"{message[:1].lower()}{message[1:]}"
