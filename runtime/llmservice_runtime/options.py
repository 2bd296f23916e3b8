"""The supervisor's options: rendered by the operator, parsed in the pod."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from llmservice_runtime import contract

ACCELERATORS = ("nvidia", "amd", "cpu")


def _option(default: Any, text: str, **more: Any) -> Any:
    """A field with its default, and its help and other arguments of add_argument."""
    kind = {"type": float} if isinstance(default, int) else {}
    return field(default=default, metadata={**kind, "help": text, **more})


@dataclass(frozen=True)
class ServeOptions:
    """Options of `serve`. Times are in seconds."""

    accelerator: str = _option("nvidia", "kind of the devices", choices=ACCELERATORS)
    expected_version: str | None = _option(None, "the vLLM whose flags these are; another MAJOR.MINOR is refused")
    weights: str = _option("auto", "what spec.precision.weights asks for")
    drain_seconds: float = _option(120, "longest wait for streams")
    propagation_seconds: float = _option(
        contract.PROPAGATION_SECONDS,
        "how long new connections are served after SIGTERM, until all proxies have removed the endpoint",
    )
    start_seconds: float = _option(
        contract.START_SECONDS,
        "start budget without fetching; a longer start continues only while it makes progress",
    )
    usual_seconds: float = _option(0, "usual start time; 0: unknown")
    hang_unready_seconds: float = _option(
        contract.HANG_UNREADY_SECONDS,
        "unready after this long with running requests and unchanged engine counters; 0: never",
    )
    hang_restart_seconds: float = _option(contract.HANG_RESTART_SECONDS, "restarted after this much longer; 0: never")
    stacks_dir: str = _option(
        f"{contract.TMP_DIR}/llmservice-stacks", "where processes of a vLLM that can say what they hang in do so"
    )
    state_port: int = _option(contract.STATE_PORT, "port of the probes, /state and /metrics", type=int)
    start_cache: str = _option(
        f"{contract.CACHE_DIR}/start", "folder for what makes the next start faster; empty: none is kept"
    )
    revision_key: str = _option("", "the revision that a start belongs to; other revisions share no files with it")
    drain_file: str = _option(contract.DRAIN_FILE, "counters shared with the middleware")
    termination_log: str = _option(contract.TERMINATION_LOG, "file of the termination message")
    fetch: tuple[str, ...] = _option(
        (), "fetch this before vLLM starts, which finds it as NAME; repeatable", metavar="NAME=URI"
    )
    fetch_socket: str = _option(contract.FETCH_SOCKET, "where `llmservice_fetch serve` listens")
    context_extension: str | None = _option(
        None, "stretch the model's context, by flags that its config.json gives", metavar="METHOD:FACTOR[:ORIGINAL]"
    )
    adapters_file: str | None = _option(None, "the list of LoRA adapters to keep loaded; without it LoRA is off")
    api_keys_file: str | None = _option(
        None, "file with the clients' API keys, one per line; reread when it changes; without it no key is required"
    )
    nodes: int = _option(1, "pods of this replica, a group: each has its rank from LWS_WORKER_INDEX", type=int)
    data_parallel_mode: str | None = _option(
        None, "which pods of a group answer requests: its leader, or with hybrid each pod", choices=(contract.HYBRID,)
    )
    group_port: int = _option(contract.GROUP_PORT, "where the group's leader hears the other supervisors", type=int)
    keep_variable: tuple[str, ...] = _option(
        (), "a credential that is passed to vLLM; others are for fetching only; repeatable", metavar="NAME"
    )

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
    for each in fields(ServeOptions):
        repeated = {"action": "append", "default": []} if isinstance(each.default, tuple) else {"default": each.default}
        parser.add_argument(f"--{each.name.replace('_', '-')}", **{**each.metadata, **repeated})


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
    values: dict[str, Any] = {f.name: getattr(namespace, f.name) for f in fields(ServeOptions)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return ServeOptions(**values | lists)
