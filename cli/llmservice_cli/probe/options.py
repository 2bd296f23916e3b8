"""The arguments of `llmservice probe`, and the values that they make."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from llmservice_cli.cluster import add_scope
from llmservice_cli.errors import WrongUsage
from llmservice_cli.load.server import EXIT_CODES, add_server, check_server
from llmservice_cli.numbers import above_zero, count, count_or_none, counts, seconds

from .load import LoadOptions
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
  llmservice probe chat --json > before.json               for programs
  llmservice probe --url http://127.0.0.1:8000 --concurrency 4 --mode stream-pooled

By NAME a pod sends the requests, from the operator's image, and is deleted afterwards, also after Ctrl-C.
Rights: get on llmservices and deployments, get, create and delete on pods, get on pods/log.
The first Ctrl-C stops the sending and waits for requests in flight, the second ends at once.

{EXIT_CODES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scope(parser)
    server = add_server(parser)
    server.add_argument("--image", help="image of the pod (default: the operator's, as the service's own pods have it)")
    load = parser.add_argument_group("load")
    pace = load.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=above_zero, help="requests a second, however slow the answers are (default: 4)")
    pace.add_argument("--concurrency", type=count, help="as many clients instead, each sends when it has its answer")
    load.add_argument("--duration", type=seconds, default=60.0, help="such as 90, 90s, 5m, 2h (default: 60s)")
    load.add_argument(
        "--mode", action="append", choices=[str(mode) for mode in Mode],
        help="streamed or whole answers, pooled keep-alive connections as the OpenAI client has them or a fresh one"
        " for each; may be repeated (default: all four, in turn)",
    )  # fmt: skip
    load.add_argument(
        "--output-tokens", type=counts, default=(8, 32), metavar="N,N", help="lengths of answers (default: 8,32)"
    )
    load.add_argument("--prompt", default=PROMPT, help="what is asked")
    load.add_argument("--api", choices=("completions", "chat"), default="completions", help="default: completions")
    load.add_argument("--timeout", type=above_zero, default=120.0, help="seconds of one attempt (default: 120)")
    load.add_argument("--retries", type=count_or_none, default=0, help="as the OpenAI client does them (default: 0)")
    out = parser.add_argument_group("output")
    out.add_argument("--marks", action="store_true", help="each line of standard input marks a moment in the report")
    out.add_argument("--json", action="store_true", help="the report as JSON")
    out.add_argument("--rows", action="store_true", help="a line of JSON for each request as it ends, and no report")
    out.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")


def check(options: argparse.Namespace) -> None:
    """WrongUsage for options that exclude each other, or that would have no effect."""
    check_server(options, "probe")
    if options.url and options.image:
        raise WrongUsage("--image is of the pod, and with --url there is none", "leave it out, or name the LLMService")
    if options.name and options.api_key_env:
        remedy = "leave it out: by NAME the key is that of spec.endpoint.apiKeySecretRef"
        raise WrongUsage("--api-key-env goes with --url", remedy)
    if options.json and options.rows:
        raise WrongUsage("--json is a report, and --rows is instead of one", "give one of them")


def load_options(options: argparse.Namespace) -> LoadOptions:
    is_paced = options.concurrency is None
    return LoadOptions(
        duration=options.duration,
        modes=tuple(Mode(mode) for mode in options.mode or Mode),
        output_tokens=options.output_tokens,
        rate=(options.rate or DEFAULT_RATE) if is_paced else None,
        concurrency=options.concurrency,
    )


def words_for_pod(options: argparse.Namespace) -> Iterator[str]:
    """The same load as a command line, for the pod that sends it; without where to."""
    load = load_options(options)
    yield from ("probe", "--rows", "--quiet")
    yield from ("--rate", str(load.rate)) if load.rate is not None else ("--concurrency", str(load.concurrency))
    yield from ("--duration", str(load.duration), "--timeout", str(options.timeout), "--retries", str(options.retries))
    for mode in load.modes:
        yield from ("--mode", str(mode))
    yield from ("--output-tokens", ",".join(str(count) for count in load.output_tokens))
    yield from (f"--prompt={options.prompt}", "--api", options.api)
