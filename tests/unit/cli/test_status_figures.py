"""What `llmservice status` reads from the text of vLLM's /metrics; the fixture is a real vLLM's."""

from pathlib import Path

import pytest
from llmservice_cli.status.snapshot import NOT_SPECULATING, Absent, read_figures

REAL = (Path(__file__).parents[1] / "fixtures" / "vllm_metrics.txt").read_text()


def metric(name: str, value: float, **labels: str) -> str:
    inner = ",".join(f'{key}="{word}"' for key, word in {"engine": "0", "model_name": "chat", **labels}.items())
    return f"vllm:{name}{{{inner}}} {value}\n"


def drafts(count: int, tokens: int, accepted: int) -> str:
    return (
        metric("spec_decode_num_drafts_total", count)
        + metric("spec_decode_num_draft_tokens_total", tokens)
        + metric("spec_decode_num_accepted_tokens_total", accepted)
        + metric("spec_decode_num_accepted_tokens_per_pos_total", 9, position="0")
    )


def prefixes(queries: int, hits: int) -> str:
    return metric("prefix_cache_queries_total", queries) + metric("prefix_cache_hits_total", hits)


def test_a_real_vllms_page() -> None:
    assert read_figures(REAL).to_object() == {
        "requestsRunning": 0,
        "requestsWaiting": 0,
        "kvCacheUsage": 0.0,
        "prefixCacheHitRate": 0.0,
        "preemptions": 0,
        "admissionRejections": {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0},
        "absent": {"draftAcceptanceRate": NOT_SPECULATING, "meanAcceptanceLength": NOT_SPECULATING},
    }


REJECTIONS = metric("admission_rejections_total", 6, reason="max_num_queued_reqs") + metric(
    "admission_rejections_total", 1, reason="max_num_queued_tokens"
)
FIGURES: dict[str, tuple[str, str, object]] = {
    "running": (metric("num_requests_running", 3.0), "running", 3),
    "the requests of all engines": (
        metric("num_requests_waiting", 2.0) + metric("num_requests_waiting", 5.0, engine="1"), "waiting", 7,
    ),
    "the fullest engine": (
        metric("kv_cache_usage_perc", 0.2) + metric("kv_cache_usage_perc", 0.9, engine="1"), "kv_cache_usage", 0.9,
    ),
    "hit rate": (prefixes(200, 50), "prefix_hit_rate", 0.25),
    "no hit rate before the first prompt": (prefixes(0, 0), "prefix_hit_rate", Absent("no prompt was looked up yet")),
    "half of a rate is none": (
        metric("prefix_cache_queries_total", 200),
        *("prefix_hit_rate", Absent("vLLM reports no vllm:prefix_cache_hits_total")),
    ),
    "preemptions": (metric("num_preemptions_total", 4.0), "preemptions", 4),
    "rejections by reason": (REJECTIONS, "rejections", {"max_num_queued_reqs": 6, "max_num_queued_tokens": 1}),
    "acceptance rate": (drafts(10, 50, 30), "acceptance_rate", 0.6),
    "acceptance length counts the model's own token": (drafts(10, 50, 30), "acceptance_length", 4.0),
    "no rate before the first draft": (drafts(0, 0, 0), "acceptance_rate", Absent("nothing was drafted yet")),
    "a missing metric": (
        metric("num_requests_running", 1), "preemptions", Absent("vLLM reports no vllm:num_preemptions_total"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "name", "expected"), FIGURES.values(), ids=FIGURES)
def test_figures(text: str, name: str, expected: object) -> None:
    assert getattr(read_figures(text), name) == expected


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "python_info 1\n"])
def test_what_is_no_page_of_vllm_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_figures(text)
