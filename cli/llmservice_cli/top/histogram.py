"""Quantiles of Prometheus histograms, over the time between two reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isnan

from llmservice_cli.metrics import LARGEST, Samples

Buckets = Mapping[float, float]
"""Observations up to each upper bound, as Prometheus counts them: in all smaller buckets, too."""


def buckets_of(samples: Samples, name: str) -> Buckets:
    """Of all engines of a pod together; empty where there is no such histogram. ValueError where it is none."""
    found: dict[float, float] = {}
    for labels, value in samples.get(f"{name}_bucket", ()):
        bound = float(labels.get("le", "nan"))
        if isnan(bound) or (bound != inf and abs(bound) > LARGEST) or value < 0:
            raise ValueError(f"{name} has a bucket {labels.get('le')!r} of {value}")
        found[bound] = found.get(bound, 0.0) + value
    return found


def increase(before: Buckets, after: Buckets) -> Buckets:
    """What was observed in between. Where a count went back the server has restarted: then all of `after` is new."""
    if any(after.get(bound, 0.0) < count for bound, count in before.items()):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def added(several: Iterable[Buckets]) -> Buckets:
    """Observations of several servers together."""
    found: dict[float, float] = {}
    for buckets in several:
        for bound, count in buckets.items():
            found[bound] = found.get(bound, 0.0) + count
    return found


def quantile(share: float, buckets: Buckets) -> float | None:
    """As PromQL's histogram_quantile: evenly spread within a bucket, the highest finite bound for what is above it.
    None without observations, or without the bucket of all."""
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != inf:
        return None
    counts: list[float] = []
    for bound in bounds:  # servers with other bounds may make a count smaller than the one below it
        counts.append(max(buckets[bound], counts[-1] if counts else 0.0))
    rank = share * counts[-1]
    if not counts[-1]:
        return None
    index = next(place for place, count in enumerate(counts) if count >= rank)
    if index == len(bounds) - 1:
        return bounds[-2]
    below = counts[index - 1] if index else 0.0
    lower = bounds[index - 1] if index else min(0.0, bounds[0])
    inside = counts[index] - below
    return lower + (bounds[index] - lower) * ((rank - below) / inside) if inside else bounds[index]
