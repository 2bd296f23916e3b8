"""Options of the operator: arguments, LLMSERVICE_* environment variables and a settings file, in that order."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeloop import bounded_yaml
from llmservice_api.constants import OPERATOR
from llmservice_vllm.versions import default_version
from pydantic.alias_generators import to_camel

from llmservice_operator.manifests.settings import InvalidSettings, Settings

PREFIX = "LLMSERVICE_"
AUTHENTICATIONS = ("none", "tokenReview")

EXAMPLES = f"""\
examples:
  In a pod, as the chart does it:
    python -m llmservice_operator --settings /etc/llmservice/settings.yaml
  On your own machine, against the cluster of your kubeconfig, watching one namespace:
    python -m llmservice_operator --namespace team-a --no-leader-elect --log-format console
  With an own image for CPU services:
    python -m llmservice_operator --default-cpu-image registry.example.com/vllm-cpu:v{default_version()}

Each option can be given as an environment variable too: --log-level is LLMSERVICE_LOG_LEVEL; lists are separated by
commas. Arguments win over the environment, the environment over the settings file.
"""


@dataclass(frozen=True, slots=True)
class Options:
    namespaces: tuple[str, ...] = ()
    log_format: str = "json"
    log_level: str = "info"
    health_port: int = 8081
    metrics_port: int = 8080
    metrics_authentication: str = "none"
    metrics_tls: str | None = None
    leader_elect: bool = True
    lease_name: str = OPERATOR
    lease_namespace: str | None = None
    identity: str = ""
    kubeconfig: str | None = None
    context: str | None = None
    max_concurrent_updates: int = 1
    state_dir: Path | None = None
    services: Settings = field(default_factory=Settings)


def parser() -> argparse.ArgumentParser:
    """The command line. Defaults are None, to recognize options that were not given."""
    made = argparse.ArgumentParser(
        prog="llmservice-operator",
        description="Serves language models with vLLM, as LLMService objects ask for it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--settings", metavar="FILE", help="YAML file with any of these, as the chart mounts it")
    add(
        "--namespace",
        action="append",
        dest="namespaces",
        metavar="NAME",
        help="watch this namespace only; may be repeated (default: all namespaces)",
    )
    add("--log-format", choices=["json", "console"], help="default: json")
    add("--log-level", choices=["debug", "info", "warning", "error"], help="default: info")
    add("--health-port", type=int, metavar="PORT", help="/healthz and /readyz (default: 8081)")
    add("--metrics-port", type=int, metavar="PORT", help="/metrics (default: 8080)")
    add(
        "--metrics-authentication",
        choices=AUTHENTICATIONS,
        help="who may read /metrics: everybody, or by a bearer token whoever may get that path (default: none)",
    )
    add("--metrics-tls", metavar="DIR", help="serve /metrics with the tls.crt and tls.key of this folder")
    add(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="act only while holding the Lease (default: yes)",
    )
    add("--lease-name", metavar="NAME", help="default: llmservice-operator")
    add("--lease-namespace", metavar="NAME", help="default: the operator's own namespace")
    add("--kubeconfig", metavar="FILE", help="default: the pod's service account, else $KUBECONFIG")
    add("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    add(
        "--max-concurrent-updates",
        type=int,
        metavar="N",
        help="services that get an update at a time when it was asked for, by each process (default: 1)",
    )
    add(
        "--shards",
        type=int,
        metavar="1",
        help="taken for the sake of settings of earlier releases, which could split the namespaces over processes",
    )
    add(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="record there what is in work, so that one LLMService that ends the process again and again is found and "
        "quarantined; it has to outlive the process (default: nothing is recorded)",
    )
    in_services = made.add_argument_group(
        "values for all services (the settings file's `services` has more)"
    ).add_argument
    in_services("--operator-image", metavar="REF", help="image that brings the supervisor into the pods")
    in_services("--default-gpu-image", metavar="REF", help="vLLM for NVIDIA GPUs")
    in_services("--default-cpu-image", metavar="REF", help="vLLM for CPUs")
    in_services("--run-as-user", type=int, metavar="UID", help="numeric user of the pods (default: 2000)")
    in_services("--hf-endpoint", metavar="URL", help="HF_ENDPOINT for all services")
    return made


SERVICE_OPTIONS = ("operator_image", "default_gpu_image", "default_cpu_image", "run_as_user", "hf_endpoint")
"""Options that are settings of all services, in the settings file in camelCase."""


def load(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Options from all three sources, checked; exits with a message if they are invalid."""
    line = parser()
    given = {name: value for name, value in vars(line.parse_args(argv)).items() if value is not None}
    try:
        given = {**_from_environment(line, environ), **given}
        path = given.pop("settings", None)
        return _merge(_from_file(Path(path)) if path else {}, given, environ)
    except (InvalidSettings, bounded_yaml.NoYaml, OSError) as error:
        line.error(str(error))


def version() -> str:
    """Version of this operator; empty in a source tree that is not installed."""
    try:
        return importlib.metadata.version("llmservice-operator")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _from_environment(line: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for action in line._actions:
        name = next((o[2:].replace("-", "_").upper() for o in action.option_strings if o.startswith("--")), "")
        text = environ.get(PREFIX + name, "")
        if not name or not text or action.dest == "help":
            continue
        found[action.dest] = _value(action, PREFIX + name, text)
    return found


def _value(action: argparse.Action, name: str, text: str) -> Any:
    kind = _kind(action)
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise InvalidSettings(f"{name}: {text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]
    if kind is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    _check_choice(action, name, text)
    try:
        return kind(text)
    except ValueError:
        raise InvalidSettings(f"{name}: {text!r} is not an integer") from None


_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _kind(action: argparse.Action) -> type[Any]:
    if isinstance(action, argparse.BooleanOptionalAction):
        return bool
    kind = list if action.dest == "namespaces" else action.type or str
    return kind if isinstance(kind, type) else str


def _check_choice(action: argparse.Action, name: str, value: object) -> None:
    if action.choices is not None and value not in action.choices:
        raise InvalidSettings(f"{name}: {value!r} is none of {', '.join(action.choices)}")


_FILE: Mapping[str, Mapping[str, str]] = {
    "": {"namespaces": "namespaces"},
    "leaderElection": {"enabled": "leader_elect", "leaseName": "lease_name", "leaseNamespace": "lease_namespace"},
    "health": {"port": "health_port"},
    "metrics": {"port": "metrics_port", "authentication": "metrics_authentication", "tlsFolder": "metrics_tls"},
    "operator": {"maxConcurrentUpdates": "max_concurrent_updates", "shards": "shards"},
    "logging": {"format": "log_format", "level": "log_level"},
}
"""The option of each key of the settings file."""
_ACTIONS = {action.dest: action for action in parser()._actions}


def _from_file(path: Path) -> dict[str, Any]:
    """Options of the settings file. InvalidSettings for unknown keys: a misspelled one would otherwise be ignored."""
    content = bounded_yaml.load(path.read_text()) or {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{path}: not a mapping")
    known = {*_FILE[""], *(section for section in _FILE if section), "services"}
    if unknown := sorted(set(content) - known):
        raise InvalidSettings(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    found: dict[str, Any] = {"services": content.get("services") or {}}
    for section, keys in _FILE.items():
        values = {k: v for k, v in content.items() if k in keys} if not section else content.get(section) or {}
        found |= _section(f"{path}: {section}." if section else f"{path}: ", values, keys)
    return found


def _section(where: str, values: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in keys:
            raise InvalidSettings(f"{where}{key} is unknown; known are {', '.join(sorted(keys))}")
        if value is None or value == "":
            continue
        action = _ACTIONS[keys[key]]
        if type(value) is not _kind(action):
            raise InvalidSettings(f"{where}{key}: {value!r} has the wrong type")
        _check_choice(action, f"{where}{key}", value)
        found[action.dest] = value
    return found


def _merge(file: dict[str, Any], given: dict[str, Any], environ: Mapping[str, str]) -> Options:
    services = dict(file.pop("services", {}))
    services |= {to_camel(name): given.pop(name) for name in SERVICE_OPTIONS if name in given}
    merged = {**file, **given}
    merged["namespaces"] = tuple(dict.fromkeys(merged.get("namespaces") or ()))
    if merged.get("max_concurrent_updates", 1) < 1:
        raise InvalidSettings("--max-concurrent-updates: at least 1, or no update would ever begin")
    if (shards := merged.pop("shards", 1)) != 1:
        raise InvalidSettings(
            f"--shards: 1, and not {shards}: one process serves 10,000 services; beyond, run one operator for each set "
            "of namespaces (--namespace; in the chart: a release each, with watch.namespaces)"
        )
    defaults = Options()
    if merged.get("metrics_tls") and merged.get("health_port", defaults.health_port) == merged.get(
        "metrics_port", defaults.metrics_port
    ):
        raise InvalidSettings("--metrics-tls: the probes speak plain HTTP; give the metrics a port of their own")
    merged.setdefault("lease_namespace", environ.get("POD_NAMESPACE"))
    pod = environ.get("POD_NAME") or socket.gethostname()
    # A restarted container keeps its pod's name and must not take the old process's Lease for its own.
    merged["identity"] = f"{pod}_{os.getpid()}_{os.urandom(4).hex()}"
    return Options(**merged, services=Settings.from_mapping(services))
