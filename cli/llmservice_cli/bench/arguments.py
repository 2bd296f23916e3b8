"""The options of `llmservice bench`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from llmservice_cli.load.options import EXIT_CODES, LOAD, Server
from llmservice_cli.numbers import above_zero, count, counts
from llmservice_cli.options import ANSWER, OUTPUT, Quiet

DESCRIPTION = "Measure a server with one seeded load, sent by one or several client disciplines."
EPILOG = f"""\
disciplines, the same load for each, one after the other:
  static      gather a batch, send it, wait for its longest answer, then the next
  dynamic     the same, but a batch also starts when its oldest request has waited for --window
  continuous  send each request when it arrives; the server decides at every step what runs

examples:
  llmservice bench chat --discipline all --out result.json --picture result.svg
  llmservice bench chat -n team-a --discipline continuous --requests 500 --rate 20
  llmservice bench --url http://127.0.0.1:8000 --model qwen --api-key-env KEY --output-tokens 16,16,16,256

By NAME requests pass through the API server (rights: get on llmservices, get and create on services/proxy);
--url measures without it. The load is the server's: do not run it against one that others need.

{EXIT_CODES}"""
HOW = "how"
TOKENS = "lengths of answers, drawn evenly: one named twice is twice as likely"


@dataclass(frozen=True, kw_only=True)
class Options(Server, Quiet):
    """What was typed."""

    requests: Annotated[Any, Option("--requests", parser=count, metavar="N", help="how many", rich_help_panel=LOAD)] = (
        "96"
    )
    rate: Annotated[
        Any,
        Option(
            "--rate", parser=above_zero, metavar="R", help="arrivals a second, a Poisson process", rich_help_panel=LOAD
        ),
    ] = "20"
    seed: Annotated[int, Option("--seed", metavar="N", help="another seed is another load", rich_help_panel=LOAD)] = 1
    prompt_words: Annotated[
        Any,
        Option("--prompt-words", parser=counts, metavar="N,N", help="lengths of prompts", rich_help_panel=LOAD),
    ] = "8,32"
    output_tokens: Annotated[
        Any, Option("--output-tokens", parser=counts, metavar="N,N", help=TOKENS, rich_help_panel=LOAD)
    ] = "8,8,8,128"
    discipline: Annotated[
        Literal["static", "dynamic", "continuous", "all"],
        Option("--discipline", help="how the client sends it", rich_help_panel=HOW),
    ] = "all"
    batch: Annotated[
        Any,
        Option("--batch", parser=count, metavar="N", help="requests of a static or dynamic batch", rich_help_panel=HOW),
    ] = "8"
    window: Annotated[
        Any,
        Option("--window", parser=above_zero, metavar="SECONDS", help="of a dynamic batch", rich_help_panel=HOW),
    ] = "0.25"
    warmup: Annotated[
        Any,
        Option("--warmup", parser=count, metavar="N", help="requests beforehand, not measured", rich_help_panel=HOW),
    ] = "8"
    timeout: Annotated[
        Any, Option("--timeout", parser=above_zero, metavar="SECONDS", help="of one request", rich_help_panel=HOW)
    ] = "600"
    out: Annotated[
        Path | None,
        Option("--out", metavar="FILE.json", help="parameters, summaries and every request", rich_help_panel=ANSWER),
    ] = None
    picture: Annotated[
        Path | None,
        Option("--picture", metavar="FILE.svg", help="bars and timelines (also .png, .pdf)", rich_help_panel=ANSWER),
    ] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
