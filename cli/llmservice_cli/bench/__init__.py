"""The options of `llmservice bench`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from click import BadParameter

from llmservice_cli.load.options import CONCURRENCY, OUTPUT_TOKENS, RATE, Name, Server, integer, of_load
from llmservice_cli.options import ANSWER, OUTPUT, Given, Quiet
from llmservice_cli.parameters import Argument, Option
from llmservice_cli.text import above_zero, count, shown

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
MOST_REQUESTS, MOST_WORDS = 1_000_000, 1_000_000

_how, _slo = partial(Option, group="how"), partial(Option, group="service level objective")
_answer = partial(Option, group=ANSWER)


def share(text: str) -> float:
    """A percentage from 0 to 100, with or without its sign, as a number from 0 to 1."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise BadParameter(f"must be a percentage such as 5%, not {shown(text)}")
    return percent / 100


def words(text: str) -> tuple[int, ...]:
    return tuple(count(part, MOST_WORDS) for part in text.split(","))


@dataclass(frozen=True, kw_only=True)
class Options(Server, Quiet, Given):
    """What was typed."""

    name: Name = None
    files: Annotated[
        list[Path] | None, Argument(metavar="FILE", help=f"results to compare, after the word {COMPARE}")
    ] = None
    requests: Annotated[Any, of_load(parser=integer(MOST_REQUESTS), metavar="N", help="how many")] = "96"
    rate: Annotated[Any, RATE.option("a Poisson process; several are a sweep; default: 20", is_list=True)] = None
    concurrency: Annotated[Any, CONCURRENCY.option("several are a sweep", is_list=True)] = None
    seed: Annotated[int, of_load(metavar="N", help="another seed is another load")] = 1
    prompt_words: Annotated[Any, of_load(parser=words, metavar="N,N", help="lengths of prompts")] = "8,32"
    output_tokens: Annotated[
        Any, OUTPUT_TOKENS.option("drawn evenly: one named twice is twice as likely", is_list=True)
    ] = "8,8,8,128"
    save_load: Annotated[
        Path | None,
        of_load(
            metavar="FILE.jsonl", help="write its prompts and lengths, for `vllm bench serve --dataset-name custom`"
        ),
    ] = None
    discipline: Annotated[
        Literal["static", "dynamic", "continuous", "all"] | None,
        _how(help="how the client sends it; default: all, of a sweep continuous"),
    ] = None
    batch: Annotated[Any, _how(parser=count, metavar="N", help="requests of a static or dynamic batch")] = "8"
    window: Annotated[Any, _how(parser=above_zero, metavar="SECONDS", help="of a dynamic batch")] = "0.25"
    warmup: Annotated[Any, _how(parser=count, metavar="N", help="requests beforehand, not measured")] = "8"
    timeout: Annotated[Any, _how(parser=above_zero, metavar="SECONDS", help="of one request")] = "600"
    slo: Annotated[
        list[str] | None,
        _slo(
            metavar="WHAT:TIME",
            help="longest ttft, tpot or e2el of a good request, as in ttft:500ms or e2el:5s; may be repeated",
        ),
    ] = None
    slo_share: Annotated[
        Any,
        _slo(
            parser=share, metavar="PERCENT", help="of the requests that must be good for a load to keep the objective"
        ),
    ] = "99%"
    out: Annotated[Path | None, _answer(metavar="FILE.json", help="parameters, summaries and every request")] = None
    picture: Annotated[
        Path | None,
        _answer(metavar="FILE.svg", help="bars and timelines, of a sweep its curves (also .png, .pdf)"),
    ] = None
    html: Annotated[Path | None, _answer(metavar="FILE.html", help="a page with the figures and the picture in it")] = (
        None
    )
    max_regression: Annotated[
        Any,
        _answer(
            parser=share,
            metavar="PERCENT",
            help=f"{COMPARE}: exit code 1 where a figure is worse than the first file's by more",
        ),
    ] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
