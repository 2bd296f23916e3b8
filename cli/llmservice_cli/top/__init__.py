"""The options of `llmservice top`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from llmservice_cli.names import service_names
from llmservice_cli.options import ANSWER, OUTPUT, WideScope
from llmservice_cli.parameters import Argument, Option
from llmservice_cli.text import seconds

DESCRIPTION = """\
What services do now: tokens/s, requests that run, wait, or are held while no replica serves, use of the KV cache, and
time to first token (TTFT) and inter-token latency (ITL) at p50 and p99 of the last interval.
"""
EPILOG = """\
examples:
  llmservice top                         services of the namespace, until Ctrl-C
  llmservice top -A --sort ttft          of all namespaces, the slowest first
  llmservice top chat -n team-a          one service and each of its pods
  llmservice top -o json --interval 10s  one sample over 10 seconds, for programs

Each interval reads /metrics of every ready pod through the API server, and of every activator where requests are held;
the last line says what that costs. For many services, or for long, use Prometheus.

rights: list on llmservices and pods, get on pods/proxy; for held requests, list on pods and get on pods/proxy in the
operator's namespace

exit codes:
  0    shown; also after Ctrl-C
  1    the services could not be read, or there is no such service
  2    wrong arguments
"""
Column = Literal["name", "gpus", "running", "waiting", "held", "kv", "generation", "prompt", "ttft", "itl"]


@dataclass(frozen=True, kw_only=True)
class Options(WideScope):
    """What was typed."""

    name: Annotated[
        str | None,
        Argument(metavar="NAME", help="the LLMService, with its pods; none: all", complete=service_names),
    ] = None
    interval: Annotated[
        Any, Option("--interval", parser=seconds, metavar="TIME", help="between two reads", group=ANSWER)
    ] = "2s"
    once: Annotated[
        bool,
        Option(
            "--once",
            help="one sample over one interval; default where standard output is no terminal",
            group=ANSWER,
        ),
    ] = False
    sort: Annotated[Column, Option("--sort", help="by this column: most first, names from A to Z", group=ANSWER)] = (
        "generation"
    )
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
