"""GET /metrics: the series that hang detection and dashboards read, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from tests.support.stand_in.engine import Engine, Observed

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
_REASONS = ("stop", "length", "abort", "error", "repetition")
_Sample = tuple[str, dict[str, str], float]


def page(engine: Engine, model: str) -> str:
    """The text format."""
    return "".join(
        f"vllm:{name}{{{_labels(labels)}}} {float(value)}\n" for name, labels, value in _samples(engine, model)
    )


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))


def _samples(engine: Engine, model: str) -> Iterator[_Sample]:
    counts, limits = engine.counts, engine.limits
    labels = {"engine": "0", "model_name": model}
    done = sum(counts.finished.values())
    plain = {
        "num_requests_running": engine.reported_running,
        "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": engine.cache_usage(),
        "prefix_cache_queries_total": counts.prompt_tokens,
        "prefix_cache_hits_total": counts.prefix_hits,
        "num_preemptions_total": 0,
        "prompt_tokens_total": counts.prompt_tokens,
        "prompt_tokens_cached_total": counts.prefix_hits,
        "generation_tokens_total": counts.generation_tokens,
        "iteration_tokens_total_count": counts.iterations,
        "iteration_tokens_total_sum": counts.prompt_tokens + counts.generation_tokens,
        "request_prompt_tokens_count": done,
        "request_generation_tokens_count": done,
        "request_generation_tokens_sum": counts.generation_tokens,
    }
    yield from ((name, labels, value) for name, value in plain.items())
    yield from _histogram("time_to_first_token_seconds", labels, counts.first_token)
    yield from _histogram("inter_token_latency_seconds", labels, counts.inter_token)
    yield from _histogram("request_queue_time_seconds", labels, counts.queued)
    yield from _histogram("e2e_request_latency_seconds", labels, counts.whole)
    for reason in _REASONS:
        yield "request_success_total", labels | {"finished_reason": reason}, counts.finished[reason]
    for reason, rejected in (("max_num_queued_reqs", counts.rejected), ("max_num_queued_tokens", 0)):
        yield "admission_rejections_total", {"model_name": model, "reason": reason}, rejected
    for state in ("awake", "weights_offloaded", "discard_all"):
        yield "engine_sleep_state", labels | {"sleep_state": state}, float(state == "awake")
    yield "cache_config_info", _cache(limits.kv_cache_tokens, limits.max_model_len), 1.0


def _histogram(name: str, labels: dict[str, str], observed: Observed) -> Iterator[_Sample]:
    counts = list(accumulate(observed.below[index] for index in range(len(observed.bounds) + 1)))
    for bound, count in zip((*map(str, observed.bounds), "+Inf"), counts, strict=True):
        yield f"{name}_bucket", labels | {"le": bound}, count
    yield f"{name}_count", labels, counts[-1]
    yield f"{name}_sum", labels, observed.total


def _cache(tokens: int, length: int) -> dict[str, str]:
    return {
        "block_size": "128",
        "cache_dtype": "auto",
        "engine": "0",
        "kv_cache_max_concurrency": f"{tokens / length:g}",
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(tokens // 128),
    }
