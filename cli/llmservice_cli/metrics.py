"""vLLM's /metrics as commands read it through the API server's pod proxy. Pages are untrusted: bounded, and finite."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from kubeloop.resources import POD
from llmservice_runtime.contract import HTTP_PORT
from llmservice_vllm.metrics import PREFIX

from .api import Api

METRICS = "/metrics"
MOST_LINES = 20_000
"""Of a page, of the metrics that are read."""
MOST_PAGE = 2 * 2**20
"""Bytes; vLLM's own has some ten thousand."""
LARGEST = 2.0**63

Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""Labels and value, by the sample's name."""


async def page_of(kube: Api, namespace: str, pod: str) -> str:
    """KubeError where there is none, or one that is too long."""
    return await kube.proxied(POD, namespace, pod, HTTP_PORT, METRICS, max_bytes=MOST_PAGE)


def samples_of(text: str, names: frozenset[str]) -> Samples:
    """The samples of these names. ValueError where it is not vLLM's page, or one of them is not a finite number."""
    # Only these lines are parsed: a page has ten times as many.
    lines = [line for line in text.split("\n") if _name(line) in names]
    if len(lines) > MOST_LINES:
        raise ValueError(f"it has more than {MOST_LINES} lines of these metrics")
    if not lines and f"\n{PREFIX}" not in f"\n{text}":
        raise ValueError("it holds no metric of vLLM")
    # Not at the top: `status` imports this module, and reads no page where no vLLM serves.
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if not isfinite(sample.value) or abs(sample.value) > LARGEST:
                raise ValueError(f"{sample.name} is {sample.value}")
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]
