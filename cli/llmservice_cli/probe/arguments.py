"""The options of `llmservice probe`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from llmservice_cli.load.options import CONCURRENCY, EXIT_CODES, LOAD, OUTPUT_TOKENS, RATE, SERVER, Server, amount
from llmservice_cli.options import ANSWER, OUTPUT, Quiet
from llmservice_cli.parameters import Option
from llmservice_cli.text import above_zero, count_or_none, seconds

from .row import Mode

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
Rights: get on llmservices and deployments, get, create and delete on pods, get on pods/log.
The first Ctrl-C stops the sending and waits for requests in flight, the second ends at once.

{EXIT_CODES}"""
MODES = (
    "streamed or whole answers, pooled keep-alive connections as the OpenAI client has them or a fresh one for each;"
    " may be repeated; default: all four, in turn"
)


@dataclass(frozen=True, kw_only=True)
class Options(Server, Quiet):
    """What was typed."""

    api_key_env: Annotated[
        str | None,
        Option(
            "--api-key-env",
            metavar="VARIABLE",
            help="environment variable with the API key (with --url)",
            group=SERVER,
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(
            "--image",
            metavar="IMAGE",
            help="of the pod; default: the operator's, as the service's own pods have it",
            group=SERVER,
        ),
    ] = None
    rate: Annotated[Any, amount(RATE, f"default: {DEFAULT_RATE:g}")] = None
    concurrency: Annotated[Any, amount(CONCURRENCY)] = None
    duration: Annotated[
        Any,
        Option("--duration", parser=seconds, metavar="TIME", help="such as 90, 90s, 5m, 2h", group=LOAD),
    ] = "60s"
    mode: Annotated[list[Mode] | None, Option("--mode", metavar="MODE", help=MODES, group=LOAD)] = None
    output_tokens: Annotated[Any, amount(OUTPUT_TOKENS, "in turn", is_list=True)] = "8,32"
    prompt: Annotated[str, Option("--prompt", metavar="TEXT", help="what is asked", group=LOAD)] = PROMPT
    api: Annotated[Literal["completions", "chat"], Option("--api", help="of the OpenAI API", group=LOAD)] = (
        "completions"
    )
    timeout: Annotated[
        Any,
        Option("--timeout", parser=above_zero, metavar="SECONDS", help="of one attempt", group=LOAD),
    ] = "120"
    retries: Annotated[
        Any,
        Option("--retries", parser=count_or_none, metavar="N", help="as the OpenAI client does them", group=LOAD),
    ] = "0"
    marks: Annotated[
        bool,
        Option("--marks", help="each line of standard input marks a moment in the report", group=ANSWER),
    ] = False
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
    rows: Annotated[
        bool,
        Option("--rows", help="a line of JSON for each request as it ends, and no report", group=ANSWER),
    ] = False
