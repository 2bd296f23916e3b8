"""Recording rules: series of each service, over its pods, that alerts and dashboards share.

Windows of an objective are sums of the five-minute rates, so that hours of raw buckets of each pod are never read.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmservice_vllm import metrics

from monitoring.rules import Group, Recording

WINDOWS = ("30m", "1h", "6h")
"""Beside 5m: what burn rates of an objective are computed over."""
_BY = "sum by (namespace, service)"
_ABORTED = f"{_BY} (rate(llmservice_server_requests_aborted_total[5m]))"


def _latency(name: str, words: str, series: str, knob: str) -> Iterator[Recording]:
    """Requests or tokens in time and too late, and the share of the late ones."""
    all_of = f"{_BY} (rate({series}_count[5m]))"
    # A bound is written as "1" or "1.0", by version.
    in_time = f'{_BY} (rate({series}_bucket{{le=~"${{{knob}}}([.]0)?"}}[5m]))'
    yield Recording(f"llmservice:{name}:rate5m", all_of, f"{words} a second.")
    yield Recording(
        f"llmservice:{name}_late:rate5m",
        f"clamp_min({all_of} - {in_time}, 0)",
        f"{words} later than the target, a second.",
    )
    for window in ("5m", *WINDOWS):
        late, every = (
            f"llmservice:{name}{part}:rate5m"
            if window == "5m"
            else f"sum_over_time(llmservice:{name}{part}:rate5m[{window}])"
            for part in ("_late", "")
        )
        yield Recording(
            f"llmservice:{name}_late:ratio_rate{window}", f"{late} / ({every} > 0)", f"Share of those over {window}."
        )


GROUP = Group(
    "llmservice.recording",
    (
        Recording("llmservice:requests:rate5m", f"{_BY} (rate({metrics.ENDED}[5m]))", "Requests that ended, a second."),
        Recording(
            "llmservice:requests_failed:ratio_rate5m",
            f'{_BY} (rate({metrics.ENDED}{{finished_reason="error"}}[5m])) / (llmservice:requests:rate5m > 0)',
            "Share of requests that ended with an error of the engine.",
        ),
        Recording(
            "llmservice:requests_aborted:ratio_rate5m",
            # vLLM counts the requests of clients that went away nowhere.
            f"{_ABORTED} / ({_ABORTED} + (llmservice:requests:rate5m or 0 * {_ABORTED}) > 0)",
            "Share of requests whose client went away before the answer ended.",
        ),
        Recording(
            "llmservice:requests_waiting:sum", f"{_BY} ({metrics.WAITING})", "Requests that wait for their turn."
        ),
        Recording(
            "llmservice:generation_tokens:rate5m",
            f"{_BY} (rate({metrics.GENERATION_TOKENS}[5m]))",
            "Generated tokens a second.",
        ),
        Recording(
            "llmservice:kv_cache_usage:max",
            f"max by (namespace, service) ({metrics.KV_USAGE})",
            "Share of the KV cache in use, of the fullest replica.",
        ),
        *_latency("ttft", "First tokens", metrics.FIRST_TOKEN, "ttftSeconds"),
        *_latency("itl", "Tokens after the first", metrics.INTER_TOKEN, "itlSeconds"),
    ),
)
