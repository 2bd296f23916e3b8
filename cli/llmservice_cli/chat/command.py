"""`llmservice chat`: one question, or many from a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from kubeloop.errors import KubeError
from llmservice_runtime.bounded_json import clean

from llmservice_cli.chat import Options
from llmservice_cli.cluster import cli_error
from llmservice_cli.documents import show
from llmservice_cli.errors import STDIN, CliError, ExitCode, WrongUsage, read_text, say
from llmservice_cli.load.options import check_server
from llmservice_cli.terminal import is_styled

from .session import Chat, Piece, Reply, opened, raise_for

LONGEST_QUESTION = 2**20
"""Characters of standard input."""
PROMPT = "> "
HELP = """\
/reset   begin a new conversation
/help    this
/exit    end the chat, as Ctrl-D does
Ctrl-C stops an answer."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def run(options: Options) -> ExitCode | Coroutine[Any, Any, ExitCode]:
    """One-shot with a message or text on standard input; else a conversation."""
    check_server(options, "chat")
    if options.temperature is not None and not 0 <= options.temperature <= 2:
        raise WrongUsage(f"--temperature is {options.temperature:g}", "give a number from 0 to 2")
    if options.url and options.wait:
        raise WrongUsage("--wait is for an LLMService, and --url is none", "leave one of them out")
    question = options.message
    if question is None and not sys.stdin.isatty():
        question = read_text(STDIN, "--message", "Give the question with -m TEXT.", most=LONGEST_QUESTION)
    if question is None:
        if options.output != "text":
            raise WrongUsage(f"-o {options.output} is the form of one answer", "give the question with -m TEXT")
        return talk(options)
    if not question.strip():
        raise WrongUsage("there is nothing to ask", "give a text with -m, or on standard input")
    return once(options, question)


async def once(options: Options, question: str) -> ExitCode:
    """The answer on standard output, and what went wrong as CliError."""
    is_text = options.output == "text"
    async with opened(options) as chat:
        with _shown(chat, is_text=is_text) as shown:
            reply = await chat.ask(question, shown)
        if not is_text:
            show(options.output, list, lambda: document(chat, reply))
        elif reply.tokens and not options.quiet:
            dim(summary(reply))
        raise_for(reply, chat.server)
    return ExitCode.DONE


def talk(options: Options) -> ExitCode:
    """Questions of somebody at a terminal. Not a coroutine: so Ctrl-C at the prompt ends `input`, and during an answer
    only the task of that answer."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # editing and history of `input`
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            chat = runner.run(stack.enter_async_context(opened(options)))
            if not options.quiet:
                dim(f"{chat.server.model} of {chat.server.name}; /help lists what else can be typed")
            for question in _questions(chat):
                _answer(runner, chat, question)
        finally:
            runner.run(stack.aclose())
    return ExitCode.DONE


def _questions(chat: Chat) -> Iterator[str]:
    """Until the end of the input, or /exit."""
    while True:
        try:
            line = _read().strip()
        except EOFError:
            print(file=sys.stderr)
            return
        match line:
            case "":
                continue
            case "/exit":
                return
            case "/reset":
                chat.conversation.reset()
                dim("a new conversation")
            case "/help":
                dim(HELP)
            case _ if line.startswith("/") and not {*line[1:]} & {*"/ "}:
                say(f"there is no {line}; /help lists what there is")
            case _:
                yield line


def _read() -> str:
    """A line; the prompt is no part of an output that goes to a file."""
    if sys.stdout.isatty():
        return input(PROMPT)
    print(PROMPT, end="", file=sys.stderr, flush=True)
    return input()


def _answer(runner: asyncio.Runner, chat: Chat, question: str) -> None:
    """What goes wrong with one answer does not end the chat."""
    try:
        with _shown(chat, is_text=True) as shown:
            reply = runner.run(chat.ask(question, shown))
        if reply.tokens and not chat.options.quiet:
            dim(summary(reply))
        raise_for(reply, chat.server)
    except KeyboardInterrupt:
        dim("stopped; Ctrl-C again ends the chat")
    except CliError as error:
        say(f"error: {error}")
    except KubeError as error:  # `connect`, which makes a CliError of it, is around the whole chat
        say(f"error: {cli_error(error)}")


@contextmanager
def _shown(chat: Chat, *, is_text: bool) -> Iterator[Callable[[Piece], None]]:
    """Prints pieces: text on standard output, reasoning dimmed on standard error. What was printed ends with a newline
    in any case."""
    ends: dict[str, str] = {}

    def show_piece(piece: Piece) -> None:
        if piece.reasoning and is_text and not chat.options.quiet:
            _write(sys.stderr, f"{DIM}{piece.reasoning}{PLAIN}" if is_styled(sys.stderr) else piece.reasoning)
            ends["reasoning"] = piece.reasoning
        if piece.text and is_text:
            if "reasoning" in ends and "text" not in ends:
                _write(sys.stderr, "\n\n")
            _write(sys.stdout, piece.text)
            ends["text"] = piece.text

    try:
        yield show_piece
    finally:
        if "text" in ends and not ends["text"].endswith("\n"):
            _write(sys.stdout, "\n")
        elif "reasoning" in ends and "text" not in ends:
            _write(sys.stderr, "\n")


def _write(stream: Any, text: str) -> None:
    stream.write(text)
    stream.flush()


def dim(text: str) -> None:
    """On standard error."""
    text = clean(text)
    print(f"{DIM}{text}{PLAIN}" if is_styled(sys.stderr) else text, file=sys.stderr, flush=True)


def summary(reply: Reply) -> str:
    """What an answer took."""
    rate, first = reply.tokens_per_second, reply.first_token_seconds
    parts = [
        f"{reply.tokens} tokens",
        *([f"{rate:.1f} tokens/s"] if rate is not None else []),
        *([f"first token after {first:.2f} s"] if first is not None else []),
        *(["cut at the limit of tokens"] if reply.finish_reason == "length" else []),
    ]
    return ", ".join(parts)


def document(chat: Chat, reply: Reply) -> dict[str, Any]:
    """Names are only ever added."""
    total = None if reply.latest is None else round(reply.latest - reply.sent, 4)
    first, rate = reply.first_token_seconds, reply.tokens_per_second
    return {
        "version": 1,
        "server": chat.server.name,
        "model": chat.server.model,
        "answer": reply.text,
        "reasoning": reply.reasoning or None,
        "finishReason": reply.finish_reason,
        "error": None if reply.failure is None else reply.failure.error,
        "tokens": {"prompt": reply.prompt_tokens, "answer": reply.tokens},
        "timings": {
            "firstTokenSeconds": None if first is None else round(first, 4),
            "totalSeconds": total,
            "tokensPerSecond": None if rate is None else round(rate, 2),
        },
    }
