"""The options of `llmservice advise`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from llmservice_cli.names import service_names
from llmservice_cli.options import ANSWER, OUTPUT, Quiet, Scope
from llmservice_cli.parameters import Argument, Option
from llmservice_cli.text import seconds

USAGE = "routing [OPTIONS] NAME"
DESCRIPTION = """\
Whether a service would gain if each request went to the replica that has computed its beginning already: the share of
prompt tokens that is found in the prefix caches now, and the share that would be.
"""
EPILOG = """\
examples:
  llmservice advise routing chat                 watches for a minute
  llmservice advise routing chat --for 10m       longer: the more requests, the narrower the answer
  llmservice advise routing chat -o json         for programs

From vLLM's counters alone there are bounds. With spec.batching.kvEvents.enabled: true, which restarts the replicas,
the requests of the last minutes are played once more as they would have been routed: a port-forward to each replica
reads which blocks it cached. No prompt is kept, shown or written.

rights: get on llmservices, list on pods, get on pods/proxy; for events, get and create on pods/portforward

exit codes:
  0    it would pay
  1    it would not pay, or nothing could be read
  2    wrong arguments
  3    not known: what was seen allows both, or the requests are routed already (spec.routing), so that nobody sees
       what they would find without; the answer says what would tell
"""


@dataclass(frozen=True, kw_only=True)
class Options(Scope, Quiet):
    """What was typed."""

    about: Annotated[Literal["routing"], Argument(metavar="routing", help="what the advice is about")]
    name: Annotated[str, Argument(metavar="NAME", help="the LLMService", complete=service_names)]
    watch: Annotated[
        Any, Option("--for", parser=seconds, metavar="TIME", help="how long requests are watched", group=ANSWER)
    ] = "60s"
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
