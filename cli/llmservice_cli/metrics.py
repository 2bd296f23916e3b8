"""Pages of Prometheus's text as commands read them through the API server's pod proxy: untrusted, so bounded."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from kubeloop.resources import POD
from llmservice_runtime.contract import HTTP_PORT
from llmservice_vllm.metrics import PREFIX

from .api import Api

METRICS = "/metrics"
MOST_LINES = 20_000
"""Of vLLM's page, of the metrics that are read."""
LONGEST_LINE = 10_000
"""Characters; the time of the parser grows with their square."""
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
    found = parsed(text, names, MOST_LINES)
    if not found and f"\n{PREFIX}" not in f"\n{text}":
        raise ValueError("it holds no metric of vLLM")
    for name, samples in found.items():
        for _, value in samples:
            if not isfinite(value) or abs(value) > LARGEST:
                raise ValueError(f"{name} is {value}")
    return found


def parsed(text: str, names: frozenset[str], most_lines: int) -> Samples:
    """The samples of these names on any page. ValueError where there are more, or one cannot be read."""
    # Only these lines are parsed: a page has ten times as many.
    lines = [line for line in text.split("\n") if line.partition("{")[0].partition(" ")[0] in names]
    if len(lines) > most_lines:
        raise ValueError(f"it has more than {most_lines} lines of these metrics")
    if any(len(line) > LONGEST_LINE for line in lines):
        raise ValueError(f"it has a line of more than {LONGEST_LINE} characters")
    # Not at the top: `status` imports this module, and reads no page where no vLLM serves and nothing is at zero.
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
