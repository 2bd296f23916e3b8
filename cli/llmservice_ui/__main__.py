"""`python -m llmservice_ui`: the page's process. It has no credentials of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvicorn

from .app import application
from .connections import Impatient
from .settings import LOOPBACK, ApiAddress, Settings
from .sizing import of_this_process

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
