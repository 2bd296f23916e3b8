"""Command-line options."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TLS_FOLDER = Path("/etc/llmservice-activator-tls")

EXAMPLES = """\
examples:
  In a pod, as the chart does it:
    python -m llmservice_activator --tls /etc/llmservice-activator-tls
  For two namespaces, in which a Role grants what is needed:
    python -m llmservice_activator --tls DIR --namespaces team-a,team-b
"""


@dataclass(frozen=True, slots=True)
class Options:
    port: int = 9443
    health_port: int = 8080
    metrics_port: int = 9090
    internal_port: int = 9091
    service: str = ""
    namespace: str = ""
    grace: float = 30.0
    tls: Path = TLS_FOLDER
    namespaces: tuple[str, ...] = ()
    log_format: str = "json"
    log_level: str = "info"
    kubeconfig: str | None = None
    context: str | None = None
    identity: str = ""
    address: str = ""
    """Address of this pod; empty outside of a pod."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="llmservice-activator",
        description="KEDA's external scaler for LLMServices with spec.scaling.autoscaling; holds their requests while "
        "no replica serves.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--port", type=_port, default=9443, help="gRPC with mutual TLS, for KEDA (default: %(default)s)")
    add("--health-port", type=_port, default=8080, help="/healthz and /readyz (default: %(default)s)")
    add("--metrics-port", type=_port, default=9090, help="/metrics (default: %(default)s)")
    add(
        "--internal-port",
        type=_port,
        default=9091,
        help="plain HTTP, for the operator and the other activators (default: %(default)s)",
    )
    add(
        "--service",
        default="",
        metavar="NAME",
        help="the Service of the activators, in $POD_NAMESPACE: its EndpointSlices say who else holds requests "
        "(default: nobody)",
    )
    add(
        "--grace",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="most time after SIGTERM for requests that are held or forwarded (default: %(default)g)",
    )
    add(
        "--tls",
        type=Path,
        default=TLS_FOLDER,
        metavar="DIR",
        help="folder with tls.crt and tls.key, and ca.crt, which verifies KEDA's certificate (default: %(default)s)",
    )
    add(
        "--namespaces",
        type=_names,
        default=(),
        metavar="A,B",
        help="watch these only, separated by commas (default: all namespaces)",
    )
    add("--log-format", choices=["json", "console"], default="json", help="default: %(default)s")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="default: %(default)s")
    add("--kubeconfig", metavar="FILE", help="default: the pod's service account, else $KUBECONFIG")
    add("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    return made


def load(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Parse and check the arguments; exits with a message if they are invalid."""
    line = parser()
    given = vars(line.parse_args(argv))
    for own in ("port", "internal_port"):
        others = [given[name] for name in ("port", "health_port", "metrics_port", "internal_port") if name != own]
        if given[own] and given[own] in others:
            line.error(f"--{own.replace('_', '-')} {given[own]} is a port of its own: choose another")
    namespace = environ.get("POD_NAMESPACE", "")
    if given["service"] and not namespace:
        line.error("--service needs the namespace of this pod in $POD_NAMESPACE")
    return Options(
        **given,
        namespace=namespace,
        identity=environ.get("POD_NAME") or socket.gethostname(),
        address=environ.get("POD_IP", ""),
    )


def _port(text: str) -> int:
    """A port; 0: any free one. ValueError for other text."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


_port.__name__ = "port"  # the name in argparse's message


def _seconds(text: str) -> float:
    """A duration that can be waited for. ValueError for other text."""
    number = float(text)
    if not 0 <= number <= 86_400:
        raise ValueError(text)
    return number


_seconds.__name__ = "number of seconds"


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
