"""The supervisor's options: rendered by the operator, parsed in the pod."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from llmservice_runtime import contract

ACCELERATORS = ("nvidia", "amd", "cpu")


@dataclass(frozen=True)
class ServeOptions:
    """Options of `serve`. Times are in seconds."""

    accelerator: str = "nvidia"
    expected_version: str | None = None
    weights: str = "auto"
    drain_seconds: float = 120
    propagation_seconds: float = contract.PROPAGATION_SECONDS
    start_seconds: float = contract.START_SECONDS
    usual_seconds: float = 0
    hang_unready_seconds: float = contract.HANG_UNREADY_SECONDS
    hang_restart_seconds: float = contract.HANG_RESTART_SECONDS
    state_port: int = contract.STATE_PORT
    drain_file: str = contract.DRAIN_FILE
    termination_log: str = contract.TERMINATION_LOG
    fetch: tuple[str, ...] = ()
    """What to fetch before vLLM starts, each as NAME=URI; vLLM finds it as NAME in contract.ARTIFACTS_DIR."""
    fetch_socket: str = contract.FETCH_SOCKET
    """The fetch container's socket."""
    context_extension: str | None = None
    """METHOD:FACTOR[:ORIGINAL]; vLLM's flags for it are derived from the model's config.json."""
    adapters_file: str | None = None
    """The mounted list of LoRA adapters; None while LoRA is off."""
    api_keys_file: str | None = None
    """The clients' keys, one per line; None: no key is required."""
    keep_variable: tuple[str, ...] = ()
    """Credentials that vLLM gets, because spec.runtime.env sets them."""

    def to_args(self) -> tuple[str, ...]:
        """The options that differ from their defaults, in a fixed order."""
        changed = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return tuple(f"--{name.replace('_', '-')}={text}" for name, value in changed for text in _texts(value))


def _texts(value: object) -> Iterator[str]:
    """The option's values as texts, one for each repetition."""
    if isinstance(value, tuple):
        yield from value
    else:
        yield f"{value:g}" if isinstance(value, float) else str(value)


def add_options(parser: argparse.ArgumentParser) -> None:
    """One argparse option for each field."""
    default = ServeOptions()
    parser.add_argument("--accelerator", choices=ACCELERATORS, default=default.accelerator)
    parser.add_argument("--expected-version", help="the vLLM whose flags these are; another MAJOR.MINOR is refused")
    parser.add_argument("--weights", default=default.weights, help="what spec.precision.weights asks for")
    parser.add_argument("--drain-seconds", type=float, default=default.drain_seconds, help="longest wait for streams")
    parser.add_argument(
        "--propagation-seconds",
        type=float,
        default=default.propagation_seconds,
        help="how long new connections are served after SIGTERM, until all proxies have removed the endpoint",
    )
    parser.add_argument(
        "--start-seconds",
        type=float,
        default=default.start_seconds,
        help="start budget without fetching; a longer start continues only while it makes progress",
    )
    parser.add_argument(
        "--usual-seconds", type=float, default=default.usual_seconds, help="usual start time; 0: unknown"
    )
    parser.add_argument(
        "--hang-unready-seconds",
        type=float,
        default=default.hang_unready_seconds,
        help="unready after this long with running requests and unchanged engine counters; 0: never",
    )
    parser.add_argument(
        "--hang-restart-seconds",
        type=float,
        default=default.hang_restart_seconds,
        help="restarted after this much longer; 0: never",
    )
    parser.add_argument("--state-port", type=int, default=default.state_port)
    parser.add_argument("--drain-file", default=default.drain_file)
    parser.add_argument("--termination-log", default=default.termination_log)
    parser.add_argument(
        "--fetch", action="append", default=[], metavar="NAME=URI", help="fetch this before vLLM starts; repeatable"
    )
    parser.add_argument("--fetch-socket", default=default.fetch_socket, help="where `llmservice_fetch serve` listens")
    parser.add_argument("--context-extension", metavar="METHOD:FACTOR[:ORIGINAL]", help="stretch the model's context")
    parser.add_argument("--adapters-file", help="the list of LoRA adapters to keep loaded")
    parser.add_argument("--api-keys-file", help="file with the clients' API keys, one per line; reread when it changes")
    parser.add_argument(
        "--keep-variable",
        action="append",
        default=[],
        metavar="NAME",
        help="a credential that is passed to vLLM; others are for fetching only; repeatable",
    )


def parse_options(args: Sequence[str]) -> ServeOptions:
    """The inverse of to_args."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser)
    return from_namespace(parser.parse_args(args))


def seconds_of(environment: Mapping[str, str], name: str, default: float) -> float:
    """The value of a variable in seconds, `default` where it is not set. ValueError where it is not above 0."""
    text = environment.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = 0
    if text is not None and not value > 0:
        raise ValueError(f"{name} in spec.runtime.env is {text!r}: give a number of seconds above 0")
    return value


def from_namespace(namespace: argparse.Namespace) -> ServeOptions:
    """The options among whatever else was parsed."""
    values = {f.name: getattr(namespace, f.name) for f in fields(ServeOptions)}
    repeated = {name: tuple(values[name]) for name in ("fetch", "keep_variable")}
    return ServeOptions(**values | repeated)
