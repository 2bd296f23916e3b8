"""The options of `llmservice probe`, and what its help says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

from llmservice_cli.load.options import (
    CONCURRENCY,
    EXIT_CODES,
    OUTPUT_TOKENS,
    RATE,
    Server,
    of_load,
    of_server,
)
from llmservice_cli.options import ANSWER, OUTPUT, Quiet
from llmservice_cli.parameters import Option
from llmservice_cli.text import above_zero, count_or_none, seconds

PROMPT = "Count the stars, one by one."
DEFAULT_RATE = 4.0
DESCRIPTION = "Send constant load to a service, and report every failed or truncated request."
EPILOG = f"""\
An answer is complete when its status is 200, it has a finish_reason that is not `abort`, exactly the tokens that were
asked for by the server's own count, and, streamed, [DONE] at its end. Every other request is lost, and reported with
its time and kind. Nothing is retried, unless --retries asks for it (the OpenAI client's default is 2).

examples:
  llmservice probe chat                                    from a pod in the cluster, for a minute, then a report
  llmservice probe chat -n team-a --duration 10m --marks   beside a rollout: type what you do, and Enter, as you do it
  llmservice probe chat -o json > before.json               for programs
  llmservice probe --url http://127.0.0.1:8000 --concurrency 4 --mode stream-pooled

By NAME a pod sends the requests, from the operator's image, and is deleted afterwards, also after Ctrl-C.
Rights: get on llmservices, deployments and, where replicas are spread over several nodes, leaderworkersets; get, create
and delete on pods, get on pods/log.
The first Ctrl-C stops the sending and waits for requests in flight, the second ends at once.

{EXIT_CODES}"""
MODES = (
    "streamed or whole answers, pooled keep-alive connections as the OpenAI client has them or a fresh one for each;"
    " may be repeated; default: all four, in turn"
)

_answer = partial(Option, group=ANSWER)


class Mode(StrEnum):
    """How a request is sent: whether its answer is streamed, and whether its connection comes from a pool."""

    STREAM_POOLED = "stream-pooled"
    STREAM_FRESH = "stream-fresh"
    WHOLE_POOLED = "whole-pooled"
    WHOLE_FRESH = "whole-fresh"

    @property
    def is_streamed(self) -> bool:
        return self in (Mode.STREAM_POOLED, Mode.STREAM_FRESH)

    @property
    def is_pooled(self) -> bool:
        return self in (Mode.STREAM_POOLED, Mode.WHOLE_POOLED)


@dataclass(frozen=True, kw_only=True)
class Options(Server, Quiet):
    """What was typed."""

    api_key_env: Annotated[
        str | None,
        of_server(metavar="VARIABLE", help="environment variable with the API key (with --url)"),
    ] = None
    image: Annotated[
        str | None,
        of_server(metavar="IMAGE", help="of the pod; default: the operator's, as the service's own pods have it"),
    ] = None
    rate: Annotated[Any, RATE.option(f"default: {DEFAULT_RATE:g}")] = None
    concurrency: Annotated[Any, CONCURRENCY.option()] = None
    duration: Annotated[Any, of_load(parser=seconds, metavar="TIME", help="such as 90, 90s, 5m, 2h")] = "60s"
    mode: Annotated[list[Mode] | None, of_load(metavar="MODE", help=MODES)] = None
    output_tokens: Annotated[Any, OUTPUT_TOKENS.option("in turn", is_list=True)] = "8,32"
    prompt: Annotated[str, of_load(metavar="TEXT", help="what is asked")] = PROMPT
    api: Annotated[Literal["completions", "chat"], of_load(help="of the OpenAI API")] = "completions"
    timeout: Annotated[Any, of_load(parser=above_zero, metavar="SECONDS", help="of one attempt")] = "120"
    retries: Annotated[Any, of_load(parser=count_or_none, metavar="N", help="as the OpenAI client does them")] = "0"
    marks: Annotated[bool, _answer("--marks", help="each line of standard input marks a moment in the report")] = False
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
    rows: Annotated[bool, _answer("--rows", help="a line of JSON for each request as it ends, and no report")] = False

    @property
    def modes(self) -> Sequence[Mode]:
        """In turn."""
        return [Mode(mode) for mode in self.mode or Mode]

    @property
    def paced(self) -> float | None:
        """Requests a second; None: so many clients as `concurrency` says."""
        return (self.rate or DEFAULT_RATE) if self.concurrency is None else None
