"""A real Prometheus and promtool, built from their Go module when they are first used."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from localcluster.builds import Store, build
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.cluster import eventually
from tests.support.patience import PATIENCE, at_most
from tests.support.ports import free_port

JSON = dict[str, Any]
_ROLES = {"ServiceMonitor": ("endpoints", "endpointslice"), "PodMonitor": ("podMetricsEndpoints", "pod")}
"""Where a monitor has its endpoints, and what it discovers."""


def program(name: str) -> str:
    """The path of prometheus or promtool."""
    return str(build(Store(cache_root(os.environ, Path.home())), Group.PROMETHEUS, os.environ, Progress()) / name)


def promtool(*words: str, text: str | None = None) -> str:
    """What it prints; AssertionError, with what it prints, where it finds anything wrong."""
    done = subprocess.run((program("promtool"), *words), input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# The Prometheus operator's translation of monitors, as far as the chart's use it.


def scrape_configs(monitors: Iterable[JSON], kubeconfig: str, interval: str) -> Iterator[JSON]:
    """Scrape configurations of ServiceMonitors and PodMonitors, with another interval than they state."""
    for monitor in monitors:
        key, role = _ROLES[monitor["kind"]]
        for number, endpoint in enumerate(monitor["spec"][key]):
            yield _scrape_config(monitor, endpoint, role, kubeconfig, interval, number)


def _scrape_config(monitor: JSON, endpoint: JSON, role: str, kubeconfig: str, interval: str, number: int) -> JSON:
    metadata, spec = monitor["metadata"], monitor["spec"]
    chosen = spec.get("namespaceSelector", {})
    discovery: JSON = {"role": role, "kubeconfig_file": kubeconfig}
    if not chosen.get("any"):
        discovery["namespaces"] = {"names": chosen.get("matchNames", [metadata["namespace"]])}
    name = f"{monitor['kind']}/{metadata['namespace']}/{metadata['name']}/{number}"
    subject = "pod" if role == "pod" else "service"
    port = "pod_container_port_name" if role == "pod" else "endpointslice_port_name"
    return {
        "job_name": name,
        "honor_labels": endpoint.get("honorLabels", False),
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "metrics_path": endpoint.get("path", "/metrics"),
        "scheme": endpoint.get("scheme", "http"),
        "kubernetes_sd_configs": [discovery],
        "relabel_configs": [
            *_selected(spec["selector"], subject),
            _kept(f"__meta_kubernetes_{port}", endpoint["port"]),
            _copied("__meta_kubernetes_namespace", "namespace"),
            *([_copied("__meta_kubernetes_service_name", "service")] if subject == "service" else []),
            _copied("__meta_kubernetes_pod_name", "pod"),
            _copied("__meta_kubernetes_pod_container_name", "container"),
            *(_copied(_meta_label("pod", label), _label_name(label)) for label in spec.get("podTargetLabels", ())),
            _job(monitor),
            {"target_label": "endpoint", "replacement": endpoint["port"]},
            *map(_relabeling, endpoint.get("relabelings", ())),
        ],
    }


def _selected(selector: JSON, subject: str) -> Iterator[JSON]:
    for label, value in selector.get("matchLabels", {}).items():
        yield _kept(_meta_label(subject, label), value)
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "Exists", "the chart's monitors use no other"
        yield _kept(_meta_label(subject, expression["key"], "labelpresent"), "true")


def _job(monitor: JSON) -> JSON:
    if monitor["kind"] == "ServiceMonitor":
        return _copied("__meta_kubernetes_service_name", "job")
    return {"target_label": "job", "replacement": f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"}


def _relabeling(stated: JSON) -> JSON:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label", "regex": "regex", "action": "action"}
    return {names[key]: value for key, value in stated.items()}


def _kept(source: str, value: str) -> JSON:
    return {"action": "keep", "source_labels": [source], "regex": value}


def _copied(source: str, target: str) -> JSON:
    return {"source_labels": [source], "target_label": target}


def _meta_label(subject: str, label: str, kind: str = "label") -> str:
    return f"__meta_kubernetes_{subject}_{kind}_{_label_name(label)}"


def _label_name(label: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in label)


@dataclass(frozen=True)
class Sample:
    """One element of an answer: its labels, and (time, value) in order of time."""

    labels: Mapping[str, str]
    values: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Prometheus:
    """One that runs on this host, on loopback."""

    url: str

    def query(self, expr: str) -> list[Sample]:
        """An instant query; AssertionError where it is refused."""
        return [Sample(found["metric"], [_point(found["value"])]) for found in self._asked("query", query=expr)]

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Sample]:
        """Over a time, in Unix seconds."""
        asked = self._asked("query_range", query=expr, start=start, end=end, step=step)
        return [Sample(found["metric"], [_point(point) for point in found["values"]]) for found in asked]

    def alerts(self) -> list[JSON]:
        """Pending and firing ones."""
        found: list[JSON] = self._get("alerts")["alerts"]
        return found

    def rules(self) -> list[JSON]:
        """All rules, with how their last evaluation went."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[JSON]:
        """Those that are scraped."""
        found: list[JSON] = self._get("targets", state="active")["activeTargets"]
        return found

    def _asked(self, path: str, **parameters: Any) -> list[JSON]:
        data = self._get(path, **parameters)
        assert data["resultType"] in {"vector", "matrix"}, data
        found: list[JSON] = data["result"]
        return found

    def _get(self, path: str, **parameters: Any) -> JSON:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE, trust_env=False)
        content = answer.json()
        assert content["status"] == "success", f"{parameters}: {content}"
        data: JSON = content["data"]
        return data


def _point(stated: Sequence[Any]) -> tuple[float, float]:
    return float(stated[0]), float(stated[1])


@contextmanager
def running(folder: Path, scrapes: Sequence[JSON], rules: JSON, interval: str = "1s") -> Iterator[Prometheus]:
    """A Prometheus with these scrape configurations and rules, which are evaluated at the interval."""
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"evaluation_interval": interval, "scrape_interval": interval, "scrape_timeout": interval},
        "rule_files": ["rules.yml"],
        "scrape_configs": list(scrapes),
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            eventually("Prometheus is ready", lambda: _is_ready(process, server, folder), 60)
            yield server
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _is_ready(process: subprocess.Popen[bytes], server: Prometheus, folder: Path) -> bool:
    assert process.poll() is None, (folder / "prometheus.log").read_text()
    try:
        return httpx.get(f"{server.url}/-/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def wait_for_samples(server: Prometheus, exprs: Sequence[str], timeout: float) -> list[str]:
    """Those of the queries that still have no data when all have, or the time is over."""
    end, missing = time.monotonic() + at_most(timeout), list(exprs)
    while missing and time.monotonic() < end:
        missing = [expr for expr in missing if not server.query(expr)]
        if missing:
            time.sleep(1)
    return missing
