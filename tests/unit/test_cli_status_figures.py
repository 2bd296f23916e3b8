"""What `llmservice status` reads from the text of vLLM's /metrics; the fixture is a real vLLM's."""

import importlib.util
from pathlib import Path

import pytest
from llmservice_cli.status import figures
from llmservice_cli.status.figures import NOT_SPECULATING, Absent, read_figures

REAL = (Path(__file__).parent / "fixtures" / "vllm_metrics.txt").read_text()
QUIET = Absent("no prompt was looked up yet")


def metric(name: str, value: float, **labels: str) -> str:
    told = {"engine": "0", "model_name": "chat", **labels}
    inner = ",".join(f'{key}="{word}"' for key, word in told.items())
    return f"{name}{{{inner}}} {value}\n"


def page(*metrics: str) -> str:
    return "".join(metrics)


SPECULATING = page(
    metric("vllm:spec_decode_num_drafts_total", 10),
    metric("vllm:spec_decode_num_draft_tokens_total", 50),
    metric("vllm:spec_decode_num_accepted_tokens_total", 30),
    metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", 9, position="0"),
)


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


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        pytest.param(metric("vllm:num_requests_running", 3.0), "running", 3, id="running"),
        pytest.param(
            page(metric("vllm:num_requests_waiting", 2.0), metric("vllm:num_requests_waiting", 5.0, engine="1")),
            "waiting", 7, id="the requests of all engines",
        ),
        pytest.param(
            page(metric("vllm:kv_cache_usage_perc", 0.2), metric("vllm:kv_cache_usage_perc", 0.9, engine="1")),
            "kv_cache_usage", 0.9, id="the fullest engine",
        ),
        pytest.param(
            page(metric("vllm:prefix_cache_queries_total", 200), metric("vllm:prefix_cache_hits_total", 50)),
            "prefix_hit_rate", 0.25, id="hit rate",
        ),
        pytest.param(
            page(metric("vllm:prefix_cache_queries_total", 0), metric("vllm:prefix_cache_hits_total", 0)),
            "prefix_hit_rate", QUIET, id="no hit rate before the first prompt",
        ),
        pytest.param(
            metric("vllm:prefix_cache_queries_total", 200),
            "prefix_hit_rate", Absent("vLLM reports no vllm:prefix_cache_hits_total"), id="half of a rate is none",
        ),
        pytest.param(metric("vllm:num_preemptions_total", 4.0), "preemptions", 4, id="preemptions"),
        pytest.param(
            page(
                metric("vllm:admission_rejections_total", 6, reason="max_num_queued_reqs"),
                metric("vllm:admission_rejections_total", 1, reason="max_num_queued_tokens"),
            ),
            "rejections", {"max_num_queued_reqs": 6, "max_num_queued_tokens": 1}, id="rejections by reason",
        ),
        pytest.param(SPECULATING, "acceptance_rate", 0.6, id="acceptance rate"),
        pytest.param(SPECULATING, "acceptance_length", 4.0, id="acceptance length counts the model's own token"),
        pytest.param(
            SPECULATING.replace("} 10", "} 0").replace("} 50", "} 0").replace("} 30", "} 0"),
            "acceptance_rate", Absent("nothing was drafted yet"), id="no rate before the first draft",
        ),
        pytest.param(
            metric("vllm:num_requests_running", 1),
            "preemptions", Absent("vLLM reports no vllm:num_preemptions_total"), id="a metric that is not there",
        ),
    ],
)  # fmt: skip
def test_figures(text: str, name: str, expected: object) -> None:
    assert getattr(read_figures(text), name) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("<html>not found</html>", id="a page"),
        pytest.param("python_info 1\n", id="metrics of something else"),
    ],
)
def test_what_is_no_page_of_vllm_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_figures(text)


@pytest.mark.vllm
def test_the_names_are_vllms() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    sources = "".join(
        (Path(spec.origin).parent / file).read_text() for file in ("v1/metrics/loggers.py", "v1/spec_decode/metrics.py")
    )
    names = [value for value in vars(figures).values() if isinstance(value, str) and value.startswith("vllm:")]
    assert len(names) == 10
    for name in names:
        assert f'"{name.removesuffix("_total")}"' in sources, name
