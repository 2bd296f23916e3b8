"""`python -m llmservice_ui`: the page's process. It has no credentials of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from .app import application
from .sessions import LOOPBACK, ApiAddress, Settings
from .sizing import of_this_process

# Connections of the page's server: one that stays without a request, or does not take its answer, is ended.
#
# uvicorn ends connections only between two requests. Its limit_concurrency counts connections instead: a few hundred
# silent ones would have the page refuse everybody, and the kubelet restart it.

HEAD_SECONDS = 10.0
"""In which a request's head has to be sent, and an answer be taken; twice as many at most."""


class Impatient(H11Protocol):
    """Looks at its connection every HEAD_SECONDS, and aborts one that was stuck at the same request the time before."""

    _stuck_at: tuple[RequestResponseCycle | None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._check)

    def _check(self) -> None:
        is_unreadable = self.transport.get_write_buffer_size() > 0
        if self.transport.is_closing() and not is_unreadable:
            return
        # uvicorn's annotation leaves out that there is none before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        is_waiting = cycle is None or (cycle.response_complete and self.timeout_keep_alive_task is None)
        is_stuck = is_waiting or is_unreadable
        if is_stuck and self._stuck_at is not None and self._stuck_at[0] is cycle:
            self.transport.abort()
            return
        self._stuck_at = (cycle,) if is_stuck else None
        self.loop.call_later(HEAD_SECONDS, self._check)


END_SECONDS = 5


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Serves until it is told to end."""
    parser = argparse.ArgumentParser(prog="python -m llmservice_ui", description="The web page of LLMServices.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--bind", default="", help="address to listen at; default: all")
    parser.add_argument("--host", action="append", default=[], help="a name under which the page answers; repeatable")
    parser.add_argument("--api-server", default="", help="default: the cluster that this pod is in")
    parser.add_argument("--ca", type=Path, help="the certificate authority of the API server")
    parser.add_argument(
        "--operator",
        type=_named,
        metavar="NAMESPACE/NAME",
        help="the operator's Deployment; the page says if it is down",
    )
    parser.add_argument("--hub", action="store_true", help="read config.json of models of a hub, for sizing")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    given = parser.parse_args(argv)
    server = given.api_server or _in_cluster(environment)
    if not server:
        print("error: no API server is known\n  what to do: run it in a cluster, or give --api-server", file=sys.stderr)
        return 2
    settings = Settings(
        ApiAddress(server, None if given.ca is None else given.ca.read_bytes()),
        LOOPBACK | {host.lower() for host in given.host},
        operator=given.operator,
        can_reach_hub=given.hub,
    )
    uvicorn.run(
        application(settings, of_this_process(can_reach_hub=given.hub)),
        host=given.bind or None,  # type: ignore[arg-type]
        port=given.port,
        log_level=given.log_level,
        access_log=False,  # addresses of sign-ins have codes
        proxy_headers=False,
        server_header=False,
        http=Impatient,
        timeout_graceful_shutdown=END_SECONDS,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return 0


def _named(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


def _in_cluster(environment: Mapping[str, str]) -> str:
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        return ""
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
