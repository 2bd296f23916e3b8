"""The options of the commands that send requests to a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from typer import Argument, BadParameter, Option

from llmservice_cli.options import Scope, service_names
from llmservice_cli.text import above_zero, count, shown

SERVER, LOAD = "server", "load"
MOST_RATE, MOST_CLIENTS, MOST_TOKENS = 100_000, 10_000, 10_000_000
MOST_VALUES = 1000
"""Of one option: as many points as a sweep may have."""
RATE, CONCURRENCY, OUTPUT_TOKENS = "--rate", "--concurrency", "--output-tokens"
EXIT_CODES = """\
exit codes:
  0    every request was answered
  1    no result; the message says what to do
  2    wrong arguments
  3    some requests were not answered
  130  interrupted; the result is of what was measured until then
"""


@dataclass(frozen=True, kw_only=True)
class Server(Scope):
    """NAME in a cluster, or --url and what goes with it."""

    name: Annotated[str | None, Argument(metavar="NAME", help="the LLMService", autocompletion=service_names)] = None
    url: Annotated[
        str | None,
        Option(
            "--url",
            metavar="URL",
            help="a server of the OpenAI API, reached from here, instead of NAME",
            rich_help_panel=SERVER,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "--model",
            metavar="MODEL",
            help="to ask for; default: the service's, the first that the server lists",
            rich_help_panel=SERVER,
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        Option(
            "--api-key-env",
            metavar="VARIABLE",
            help="environment variable with the API key; default: the Secret of spec.endpoint.apiKeySecretRef",
            rich_help_panel=SERVER,
        ),
    ] = None


class _Amount(NamedTuple):
    """An option of how much is sent."""

    read: Callable[[str], float]
    letter: str
    text: str


_AMOUNTS: Mapping[str, _Amount] = {
    RATE: _Amount(
        lambda text: above_zero(text, MOST_RATE), "R", "requests a second, sent on time however slow the answers are"
    ),
    CONCURRENCY: _Amount(
        lambda text: count(text, MOST_CLIENTS),
        "N",
        "instead of --rate: clients, each of which sends when it has its answer",
    ),
    OUTPUT_TOKENS: _Amount(lambda text: count(text, MOST_TOKENS), "N", "lengths of answers"),
}


def amount(name: str, more: str = "", *, is_list: bool = False) -> Any:
    """The option of this name, of one number or of several. `more` is what a command says beside what all say."""
    what = _AMOUNTS[name]

    def several(text: str) -> tuple[float, ...]:
        parts = text.split(",")
        if len(parts) > MOST_VALUES:
            raise BadParameter(f"has more than {MOST_VALUES} values: {shown(text)}")
        return tuple(map(what.read, parts))

    return Option(
        name,
        parser=several if is_list else what.read,
        metavar=f"{what.letter},{what.letter}" if is_list else what.letter,
        help="; ".join(filter(None, (what.text, more))),
        rich_help_panel=LOAD,
    )


def number(most: int) -> Callable[[str], int]:
    """A parser of an integer from 1 to `most`."""
    return lambda text: count(text, most)


def numbers(most: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of integers from 1 to `most`, separated by commas."""
    return lambda text: tuple(count(part, most) for part in text.split(","))
