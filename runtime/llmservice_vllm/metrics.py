"""Metrics of vLLM that are read, by their names in /metrics; vLLM's sources have counters without `_total`."""

from __future__ import annotations

from collections.abc import Collection

PREFIX = "vllm:"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
ENDED = "vllm:request_success_total"
PREEMPTIONS = "vllm:num_preemptions_total"
REJECTIONS = "vllm:admission_rejections_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
STEP_TOKENS = "vllm:iteration_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
KV_USAGE = "vllm:kv_cache_usage_perc"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
FIRST_TOKEN = "vllm:time_to_first_token_seconds"
INTER_TOKEN = "vllm:inter_token_latency_seconds"
QUEUE_TIME = "vllm:request_queue_time_seconds"
WHOLE_REQUEST = "vllm:e2e_request_latency_seconds"


def totals(text: str, names: Collection[str]) -> dict[str, float]:
    """The series of these names on a page of Prometheus's text, summed over their labels. For pages of a server that is
    trusted: in a fiftieth of the time that a whole parser takes, and ValueError where a value is no number."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in names:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found
