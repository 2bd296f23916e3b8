"""The options of `llmservice ui`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmservice_cli.options import Scope
from llmservice_cli.parameters import Option
from llmservice_cli.text import count_or_none

DESCRIPTION = """\
Signs you in to the web page of the operator's chart (ui.enabled) with the token of your kubeconfig, by a port-forward
to its pod, and opens it. The page reads with that token alone, and changes nothing.
"""
EPILOG = """\
examples:
  llmservice ui                                    until Ctrl-C
  llmservice ui --no-open --port 8090              print the address instead of opening it
  llmservice ui --service-account team-a/viewer    a kubeconfig with a client certificate has no token to hand over
  llmservice ui --url https://llm.example.com      a page behind an Ingress: no port-forward

The address that is opened has a code that signs one browser in, once, within two minutes; the token is in none.
Other users of this machine may see it in the browser's command line: use --no-open where there are any. A code that
is used twice ends the session that it began.

exit codes:
  0    ended by Ctrl-C; with --url, opened
  1    there is no page, or it refuses the token
  2    wrong arguments

rights: list and get on pods, get and create on pods/portforward in the page's namespace, but not with --url; with
--service-account create on its serviceaccounts/token. What the page shows needs what `llmservice status` and
`llmservice top` need.
"""
PAGE = "the page"


def port(text: str) -> int:
    """One of TCP's, or 0."""
    return count_or_none(text, 65535)


@dataclass(frozen=True, kw_only=True)
class Options(Scope):
    """What was typed."""

    page_namespace: Annotated[
        str | None,
        Option(
            "--page-namespace",
            metavar="NAME",
            help="where the operator's chart is; default: llmservice-system",
            group=PAGE,
        ),
    ] = None
    url: Annotated[
        str | None,
        Option("--url", metavar="URL", help="of a page that is reached without a port-forward", group=PAGE),
    ] = None
    port: Annotated[
        int, Option("--port", parser=port, metavar="N", help="on this machine; 0: a free one", group=PAGE)
    ] = 0
    service_account: Annotated[
        str | None,
        Option(
            "--service-account",
            metavar="NAMESPACE/NAME",
            help="sign in with a token of it, of one hour",
            group=PAGE,
        ),
    ] = None
    no_open: Annotated[bool, Option("--no-open", help="print the address, and open no browser", group=PAGE)] = False
