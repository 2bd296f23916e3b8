"""The options of the commands that send requests to a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

from click import BadParameter

from llmservice_cli.errors import WrongUsage
from llmservice_cli.names import service_names
from llmservice_cli.options import Scope
from llmservice_cli.parameters import Argument, Option
from llmservice_cli.text import above_zero, count, shown

SERVER, LOAD = "server", "load"
MOST_RATE, MOST_CLIENTS, MOST_TOKENS = 100_000, 10_000, 10_000_000
MOST_VALUES = 1000
"""Of one option: as many points as a sweep may have."""
EXIT_CODES = """\
exit codes:
  0    every request was answered
  1    no result; the message says what to do
  2    wrong arguments
  3    some requests were not answered
  130  interrupted; the result is of what was measured until then
"""
Name = Annotated[str | None, Argument(metavar="NAME", help="the LLMService", complete=service_names)]
of_server, of_load = partial(Option, group=SERVER), partial(Option, group=LOAD)


@dataclass(frozen=True, kw_only=True)
class Server(Scope):
    """NAME in a cluster, or --url and what goes with it."""

    name: Name = None
    url: Annotated[
        str | None,
        of_server(metavar="URL", help="a server of the OpenAI API, reached from here, instead of NAME"),
    ] = None
    model: Annotated[
        str | None,
        of_server(metavar="MODEL", help="to ask for; default: the service's, the first that the server lists"),
    ] = None
    api_key_env: Annotated[
        str | None,
        of_server(
            metavar="VARIABLE",
            help="environment variable with the API key; default: the Secret of spec.endpoint.apiKeySecretRef",
        ),
    ] = None


def check_server(options: Server, command: str) -> None:
    """WrongUsage unless there is one of NAME and --url."""
    if bool(options.name) == bool(options.url):
        raise WrongUsage("the server is named by NAME or by --url", f"give one of them; llmservice {command} --help")


def integer(most: float) -> Callable[[str], int]:
    """A parser of an integer from 1 to `most`."""
    return lambda text: count(text, most)


class Amount(NamedTuple):
    """An option of how much is sent, with the same words and bounds in each command."""

    read: Callable[[str], float]
    letter: str
    text: str

    def option(self, more: str = "", *, is_list: bool = False) -> Any:
        """Of one number or of several. `more` is what a command says beside what all say."""
        letter, text = self.letter, "; ".join(filter(None, (self.text, more)))
        if is_list:
            return of_load(parser=self._several, metavar=f"{letter},{letter}", help=text)
        return of_load(parser=self.read, metavar=letter, help=text)

    def _several(self, text: str) -> tuple[float, ...]:
        parts = text.split(",")
        if len(parts) > MOST_VALUES:
            raise BadParameter(f"has more than {MOST_VALUES} values: {shown(text)}")
        return tuple(map(self.read, parts))


RATE = Amount(
    lambda text: above_zero(text, MOST_RATE), "R", "requests a second, sent on time however slow the answers are"
)
CONCURRENCY = Amount(
    integer(MOST_CLIENTS), "N", "instead of --rate: clients, each of which sends when it has its answer"
)
OUTPUT_TOKENS = Amount(integer(MOST_TOKENS), "N", "lengths of answers")
