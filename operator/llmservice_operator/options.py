"""How the operator is started: arguments, LLMSERVICE_* environment variables and a settings file, in that order."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml
from llmservice_runtime.flags.table import newest_version

from llmservice_operator.api.constants import OPERATOR
from llmservice_operator.build.settings import InvalidSettings, Settings

PREFIX = "LLMSERVICE_"
AUTHENTICATIONS = ("none", "tokenReview")
MAX_SHARDS = 64
"""Each is renewed every two seconds."""

EXAMPLES = f"""\
examples:
  In a pod, as the chart does it:
    python -m llmservice_operator --settings /etc/llmservice/settings.yaml
  On your own machine, against the cluster of your kubeconfig, watching one namespace:
    python -m llmservice_operator --namespace team-a --no-leader-elect --log-format console
  With an own image for CPU services:
    python -m llmservice_operator --default-cpu-image registry.example.com/vllm-cpu:v{newest_version()}

Each option can be given as an environment variable too: --log-level is LLMSERVICE_LOG_LEVEL; lists are separated by
commas. Arguments win over the environment, the environment over the settings file.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that the process needs to know."""

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
    shards: int = 1
    state_dir: Path | None = None
    services: Settings = field(default_factory=Settings)


def parser() -> argparse.ArgumentParser:
    """The command line. Defaults are None, which tells options that were given from those that were not."""
    made = argparse.ArgumentParser(
        prog="llmservice-operator",
        description="Serves language models with vLLM, as LLMService objects ask for it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--settings", metavar="FILE", help="YAML file with any of these, as the chart mounts it")
    made.add_argument(
        "--namespace",
        action="append",
        dest="namespaces",
        metavar="NAME",
        help="watch this namespace only; may be repeated (default: all namespaces)",
    )
    made.add_argument("--log-format", choices=["json", "console"], help="default: json")
    made.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="default: info")
    made.add_argument("--health-port", type=int, metavar="PORT", help="/healthz and /readyz (default: 8081)")
    made.add_argument("--metrics-port", type=int, metavar="PORT", help="/metrics (default: 8080)")
    made.add_argument(
        "--metrics-authentication",
        choices=AUTHENTICATIONS,
        help="who may read /metrics: everybody, or by a bearer token whoever may get that path (default: none)",
    )
    made.add_argument("--metrics-tls", metavar="DIR", help="serve /metrics with the tls.crt and tls.key of this folder")
    made.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="act only while holding the Lease (default: yes)",
    )
    made.add_argument("--lease-name", metavar="NAME", help="default: llmservice-operator")
    made.add_argument("--lease-namespace", metavar="NAME", help="default: the operator's own namespace")
    made.add_argument("--kubeconfig", metavar="FILE", help="default: the pod's service account, else $KUBECONFIG")
    made.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    made.add_argument(
        "--max-concurrent-updates",
        type=int,
        metavar="N",
        help="services that get an update at a time when it was asked for, by each process (default: 1)",
    )
    made.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="split the namespaces into N shards, with a Lease each, that processes share out (default: 1)",
    )
    made.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="record there what is in work, so that one LLMService that ends the process again and again is found and "
        "quarantined; it has to outlive the process (default: nothing is recorded)",
    )
    services = made.add_argument_group("values for all services (the settings file's `services` has more)")
    services.add_argument("--operator-image", metavar="REF", help="image that brings the supervisor into the pods")
    services.add_argument("--default-gpu-image", metavar="REF", help="vLLM for NVIDIA GPUs")
    services.add_argument("--default-cpu-image", metavar="REF", help="vLLM for CPUs")
    services.add_argument("--run-as-user", type=int, metavar="UID", help="numeric user of the pods (default: 2000)")
    services.add_argument("--hf-endpoint", metavar="URL", help="HF_ENDPOINT for all services")
    return made


SERVICE_OPTIONS = {
    "operator_image": "operatorImage",
    "default_gpu_image": "defaultGpuImage",
    "default_cpu_image": "defaultCpuImage",
    "run_as_user": "runAsUser",
    "hf_endpoint": "hfEndpoint",
}


def load(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """All three sources, checked; ends the process with a clear message where something is wrong."""
    line = parser()
    given = {name: value for name, value in vars(line.parse_args(argv)).items() if value is not None}
    try:
        given = {**_from_environment(line, environ), **given}
        path = given.pop("settings", None)
        return _merge(_from_file(Path(path)) if path else {}, given, environ)
    except (InvalidSettings, OSError, yaml.YAMLError) as error:
        _fail(line, error)


def version() -> str:
    """Version of this operator; empty where it runs from a source tree that is not installed."""
    try:
        return importlib.metadata.version("llmservice-operator")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _fail(line: argparse.ArgumentParser, error: Exception) -> NoReturn:
    line.error(str(error))


def _from_environment(line: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, Any]:
    """The same options by their names in capitals."""
    found: dict[str, Any] = {}
    for action in line._actions:
        name = next((o[2:].replace("-", "_").upper() for o in action.option_strings if o.startswith("--")), "")
        text = environ.get(PREFIX + name, "")
        if not name or not text or action.dest == "help":
            continue
        found[action.dest] = _value(action, PREFIX + name, text)
    return found


def _value(action: argparse.Action, name: str, text: str) -> Any:
    if isinstance(action, argparse.BooleanOptionalAction):
        return _bool(name, text)
    if action.dest == "namespaces":
        return [part.strip() for part in text.split(",") if part.strip()]
    if action.choices is not None and text not in action.choices:
        raise InvalidSettings(f"{name}: {text!r} is none of {', '.join(action.choices)}")
    if action.type is int:
        try:
            return int(text)
        except ValueError:
            raise InvalidSettings(f"{name}: {text!r} is not an integer") from None
    return Path(text) if action.type is Path else text


def _bool(name: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in {"true", "false", "1", "0", "yes", "no"}:
        raise InvalidSettings(f"{name}: {text!r} is neither true nor false")
    return lowered in {"true", "1", "yes"}


_FILE: Mapping[str, Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    "": {"namespaces": ("namespaces", list)},
    "leaderElection": {
        "enabled": ("leader_elect", bool),
        "leaseName": ("lease_name", str),
        "leaseNamespace": ("lease_namespace", str),
    },
    "health": {"port": ("health_port", int)},
    "metrics": {
        "port": ("metrics_port", int),
        "authentication": ("metrics_authentication", str),
        "tlsFolder": ("metrics_tls", str),
    },
    "operator": {"maxConcurrentUpdates": ("max_concurrent_updates", int), "shards": ("shards", int)},
    "logging": {"format": ("log_format", str), "level": ("log_level", str)},
}
_CHOICES = {action.dest: tuple(action.choices) for action in parser()._actions if action.choices is not None}


def _from_file(path: Path) -> dict[str, Any]:
    """Options of the settings file. InvalidSettings for unknown keys: a misspelled one would else be ignored."""
    content = yaml.safe_load(path.read_text()) or {}
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


def _section(
    where: str, values: Mapping[str, Any], keys: Mapping[str, tuple[str, type | tuple[type, ...]]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in keys:
            raise InvalidSettings(f"{where}{key} is unknown; known are {', '.join(sorted(keys))}")
        name, kind = keys[key]
        if value is None or value == "":
            continue
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidSettings(f"{where}{key}: {value!r} has the wrong type")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise InvalidSettings(f"{where}{key}: {value!r} is none of {', '.join(_CHOICES[name])}")
        found[name] = value
    return found


def _merge(file: dict[str, Any], given: dict[str, Any], environ: Mapping[str, str]) -> Options:
    services = dict(file.pop("services", {}))
    services |= {SERVICE_OPTIONS[name]: given.pop(name) for name in SERVICE_OPTIONS if name in given}
    merged = {**file, **given}
    merged["namespaces"] = tuple(dict.fromkeys(merged.get("namespaces") or ()))
    if merged.get("max_concurrent_updates", 1) < 1:
        raise InvalidSettings("--max-concurrent-updates: at least 1, or no update would ever begin")
    if not 1 <= (shards := merged.get("shards", 1)) <= MAX_SHARDS:
        raise InvalidSettings(f"--shards: from 1 to {MAX_SHARDS}, and not {shards}")
    if shards > 1 and not merged.get("leader_elect", True):
        raise InvalidSettings("--shards: with several, leader election is what shares them out; leave it on")
    defaults = Options()
    if merged.get("metrics_tls") and merged.get("health_port", defaults.health_port) == merged.get(
        "metrics_port", defaults.metrics_port
    ):
        raise InvalidSettings("--metrics-tls: the probes speak plain HTTP; give the metrics a port of their own")
    merged.setdefault("lease_namespace", environ.get("POD_NAMESPACE"))
    pod = environ.get("POD_NAME") or socket.gethostname()
    # A restarted container keeps its pod's name and must not take the old process's lease for its own.
    merged["identity"] = f"{pod}_{os.getpid()}_{os.urandom(4).hex()}"
    return Options(**merged, services=Settings.from_mapping(services))
