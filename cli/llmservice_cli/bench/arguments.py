"""The options of `llmservice bench`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from llmservice_cli.load.options import CONCURRENCY, LOAD, OUTPUT_TOKENS, RATE, Server, amount, number, numbers
from llmservice_cli.options import ANSWER, OUTPUT, Given, Quiet, service_names
from llmservice_cli.text import above_zero, count, shown

# Values of the options of `llmservice bench`: parsers for typer.


def share(text: str) -> float:
    """A percentage from 0 to 100, with or without its sign, as a number from 0 to 1."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise BadParameter(f"must be a percentage such as 5%, not {shown(text)}")
    return percent / 100


COMPARE = "compare"
DESCRIPTION = """\
Measure a server with one seeded load: by one or several client disciplines, or over a sweep of rates or of clients;
or compare result files.
"""
USAGE = f"[OPTIONS] (NAME | --url URL | {COMPARE} FILE FILE...)"
EPILOG = f"""\
disciplines, the same load for each, one after the other:
  static      gather a batch, send it, wait for its longest answer, then the next
  dynamic     the same, but a batch also starts when its oldest request has waited for --window
  continuous  send each request when it arrives; the server decides at every step what runs

sweeps, the same requests at each point, one point after the other:
  --rate 1,2,5,10        open loop: requests arrive whether or not earlier ones are answered
  --concurrency 1,2,4,8  closed loop: so many clients, each sends when it has its answer

examples:
  llmservice bench chat --discipline all --out result.json --picture result.svg
  llmservice bench chat --rate 1,2,5,10 --slo ttft:500ms --slo tpot:50ms --html report.html
  llmservice bench chat -n team-a --concurrency 1,2,4,8 --out after.json
  llmservice bench compare before.json after.json --max-regression 5%
  llmservice bench --url http://127.0.0.1:8000 --model qwen --api-key-env KEY --output-tokens 16,16,16,256

`{COMPARE}` with files behind it compares them; without files it is the LLMService of that name.

By NAME requests pass through the API server (rights: get on llmservices, get and create on services/proxy); with an API
key through a port-forward to one ready pod, which is slower than the network (list on pods, get and create on
pods/portforward, get on the Secret or --api-key-env); in a pod of the cluster to the Service. --url measures without
the API server. The load is the server's: do not run it against one that others need.

exit codes:
  0    every request was answered; {COMPARE}: nothing is worse by more than --max-regression
  1    no result, and the message says what to do; {COMPARE}: something is worse
  2    wrong arguments, or files that are no results
  3    some requests were not answered
  130  interrupted; the result is of what was measured until then
"""
HOW, SLO = "how", "service level objective"
MOST_REQUESTS, MOST_WORDS = 1_000_000, 1_000_000


@dataclass(frozen=True, kw_only=True)
class Options(Server, Quiet, Given):
    """What was typed."""

    name: Annotated[str | None, Argument(metavar="NAME", help="the LLMService", autocompletion=service_names)] = None
    files: Annotated[
        list[Path] | None, Argument(metavar="FILE", help=f"results to compare, after the word {COMPARE}")
    ] = None
    requests: Annotated[
        Any,
        Option(
            "--requests",
            parser=number(MOST_REQUESTS),
            metavar="N",
            help="how many",
            rich_help_panel=LOAD,
        ),
    ] = "96"
    rate: Annotated[Any, amount(RATE, "a Poisson process; several are a sweep; default: 20", is_list=True)] = None
    concurrency: Annotated[Any, amount(CONCURRENCY, "several are a sweep", is_list=True)] = None
    seed: Annotated[int, Option("--seed", metavar="N", help="another seed is another load", rich_help_panel=LOAD)] = 1
    prompt_words: Annotated[
        Any,
        Option(
            "--prompt-words", parser=numbers(MOST_WORDS), metavar="N,N", help="lengths of prompts", rich_help_panel=LOAD
        ),
    ] = "8,32"
    output_tokens: Annotated[
        Any, amount(OUTPUT_TOKENS, "drawn evenly: one named twice is twice as likely", is_list=True)
    ] = "8,8,8,128"
    save_load: Annotated[
        Path | None,
        Option(
            "--save-load",
            metavar="FILE.jsonl",
            help="write its prompts and lengths, for `vllm bench serve --dataset-name custom`",
            rich_help_panel=LOAD,
        ),
    ] = None
    discipline: Annotated[
        Literal["static", "dynamic", "continuous", "all"] | None,
        Option(
            "--discipline", help="how the client sends it; default: all, of a sweep continuous", rich_help_panel=HOW
        ),
    ] = None
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
    slo: Annotated[
        list[str] | None,
        Option(
            "--slo",
            metavar="WHAT:TIME",
            help="longest ttft, tpot or e2el of a good request, as in ttft:500ms or e2el:5s; may be repeated",
            rich_help_panel=SLO,
        ),
    ] = None
    slo_share: Annotated[
        Any,
        Option(
            "--slo-share",
            parser=share,
            metavar="PERCENT",
            help="of the requests that must be good for a load to keep the objective",
            rich_help_panel=SLO,
        ),
    ] = "99%"
    out: Annotated[
        Path | None,
        Option("--out", metavar="FILE.json", help="parameters, summaries and every request", rich_help_panel=ANSWER),
    ] = None
    picture: Annotated[
        Path | None,
        Option(
            "--picture",
            metavar="FILE.svg",
            help="bars and timelines, of a sweep its curves (also .png, .pdf)",
            rich_help_panel=ANSWER,
        ),
    ] = None
    html: Annotated[
        Path | None,
        Option(
            "--html", metavar="FILE.html", help="a page with the figures and the picture in it", rich_help_panel=ANSWER
        ),
    ] = None
    max_regression: Annotated[
        Any,
        Option(
            "--max-regression",
            parser=share,
            metavar="PERCENT",
            help=f"{COMPARE}: exit code 1 where a figure is worse than the first file's by more",
            rich_help_panel=ANSWER,
        ),
    ] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
