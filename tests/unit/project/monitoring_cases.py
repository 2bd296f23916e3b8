"""Series in which each alert of the chart fires, and those in which it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitoring.rules import Severity

SERVICE = 'namespace="a",service="x"'
OF_SERVICE = {"namespace": "a", "service": "x"}
OPERATOR = 'job="op-metrics",namespace="ops",pod="op-0"'
NAMESAKE = 'job="op-metrics",namespace="dev",pod="op-0"'
"""Of a release with the same name in another namespace."""
Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """Series of a minute's interval in which an alert fires with these labels, and those in which it does not."""

    bad: Series
    good: Mapping[str, Series]
    labels: Mapping[str, str] = field(default_factory=lambda: OF_SERVICE)
    at: str = "60m"


def available(values: str) -> Series:
    return {f'llmservice_available{{{SERVICE},pod="op-0"}}': values}


def ready(values: str = "1x420") -> Series:
    return {f"llmservice_ready{{{SERVICE}}}": values}


def foreign(series: Series) -> Series:
    """Of a vLLM that no LLMService has made."""
    return {name: values for name, values in series.items() if not name.startswith("llmservice_ready")}


def restarts(values: str, up: str = "1x120", instance: str = "op-0") -> Series:
    """As one process of the operator counts them, which is scraped or not."""
    return {
        f'llmservice_restarts_total{{{SERVICE},instance="{instance}"}}': values,
        f'up{{instance="{instance}"}}': up,
    }


def young(series: Series, at: int) -> Series:
    """Of a process that began at this minute."""
    return series | {'process_start_time_seconds{instance="op-0"}': f"_x{at} {60 * at}x{120 - at}"}


def held(name: str, reason: str, values: str, up: str = "1x60") -> Series:
    """Requests that an activator had and did not get answered."""
    return {
        f'llmservice_activator_{name}_total{{{SERVICE},instance="act",reason="{reason}"}}': values,
        'up{instance="act"}': up,
    }


TTFT, ITL = ("time_to_first_token", "2.5"), ("inter_token_latency", "0.1")


def latency(of: tuple[str, str], *late: tuple[int, int], rate: int = 600, begins: int = 0) -> Series:
    """So many a minute, for (minutes, late ones of each) one after another, from a minute on."""
    (series, bound), counter, steps = of, 0, []
    before = f"_x{begins} " if begins else ""
    for minutes, share in late:
        steps.append(f"{counter}+{rate - share}x{minutes - 1}")
        counter += (rate - share) * minutes
    total = sum(minutes for minutes, _ in late)
    name = f"vllm:{series}_seconds"
    return ready() | {
        f'{name}_bucket{{{SERVICE},pod="p",le="{bound}"}}': before + " ".join(steps),
        f'{name}_bucket{{{SERVICE},pod="p",le="+Inf"}}': f"{before}0+{rate}x{total}",
        f'{name}_count{{{SERVICE},pod="p"}}': f"{before}0+{rate}x{total}",
    }


def few(of: tuple[str, str]) -> int:
    """A minute: less than 100 requests an hour, or their tokens."""
    return 1 if of == TTFT else 100


def fast_burn(of: tuple[str, str]) -> Case:
    """Of an hour and of five minutes."""
    good = {
        "in time": latency(of, (130, 1)),
        "it is over": latency(of, (100, 360), (30, 0)),
        "it began a moment ago": latency(of, (118, 0), (10, 600)),
        "too few to judge": latency(of, (130, few(of)), rate=few(of)),
        "too few of a new service": latency(of, (10, 6 * few(of)), rate=6 * few(of), begins=110),
        "a vLLM of others": foreign(latency(of, (130, 120))),
        "a bound that is not the target": latency((of[0], of[1] + "5"), (130, 120)),
    }
    return Case(latency(of, (130, 120)), good, at="120m")


def slow_burn(of: tuple[str, str]) -> Case:
    """Of six hours and of half an hour."""
    good = {
        "in time": latency(of, (410, 5)),
        "it is over": latency(of, (350, 120), (60, 0)),
        "it began half an hour ago": latency(of, (380, 0), (30, 120)),
        "too few to judge": latency(of, (410, few(of)), rate=few(of)),
        "a vLLM of others": foreign(latency(of, (410, 60))),
    }
    return Case(latency(of, (410, 60)), good, at="400m")


def ended(**rates: int) -> Series:
    """Requests a minute by how they end."""
    return ready() | {
        f'vllm:request_success_total{{{SERVICE},pod="p",finished_reason="{reason}"}}': f"0+{rate}x120"
        for reason, rate in rates.items()
    }


def aborted(of_hundred: int) -> Series:
    """Requests a minute whose client goes away; the others are answered."""
    series = f'llmservice_server_requests_aborted_total{{{SERVICE},pod="p"}}'
    return ended(stop=100 - of_hundred) | {series: f"0+{of_hundred}x120"}


def waiting(*values: str) -> Series:
    """By replica."""
    return ready() | {
        f'vllm:num_requests_waiting{{{SERVICE},pod="p{number}",engine="0"}}': stated
        for number, stated in enumerate(values)
    }


def memory(usage: str, preemptions: int) -> Series:
    return ready() | {
        f'vllm:kv_cache_usage_perc{{{SERVICE},pod="p"}}': usage,
        f'vllm:num_preemptions_total{{{SERVICE},pod="p"}}': f"0+{preemptions}x120",
    }


def problem(kind: str, reason: str, values: str = "1x120") -> Series:
    return {f'llmservice_problem{{{SERVICE},type="{kind}",reason="{reason}",pod="op-0"}}': values}


def passes(good: int, bad: int, operator: str = OPERATOR) -> Series:
    name = "llmservice_reconcile_duration_seconds_count"
    return {f'{name}{{{operator},result="{r}"}}': f"0+{n}x120" for r, n in (("ok", good), ("error", bad))}


def internal_errors(values: str, operator: str = OPERATOR) -> Series:
    return {f'llmservice_internal_errors_total{{{operator},part="state"}}': values}


def leading(*processes: int) -> Series:
    return {f'llmservice_leader{{{OPERATOR},instance="op-{n}"}}': f"{v}x120" for n, v in enumerate(processes)}


def acting(*processes: int) -> Series:
    """The first process has the Lease."""
    stages = {
        f'llmservice_stage{{{OPERATOR},instance="op-{n}",stage="acting"}}': f"{v}x120" for n, v in enumerate(processes)
    }
    return leading(1, 0) | stages


def watch(synced: int, broken: int, operator: str = OPERATOR) -> Series:
    """Of a namespace; `honor_labels` keeps that one as the label."""
    watched = 'job="op-metrics",namespace="a",pod="op-0",instance="op-0"'
    return {
        f"llmservice_watch_synced{{{watched}}}": f"{synced}x120",
        f"llmservice_watch_broken{{{watched}}}": f"{broken}x120",
        f'llmservice_leader{{{operator},instance="op-0"}}': "0x120",
    }


def expires(days: float) -> Series:
    """Time is from 0 on."""
    return {
        f'llmservice_certificate_expiry_timestamp_seconds{{{OPERATOR},certificate="metrics"}}': f"{days * 86400}x120"
    }


WATCHED = {"job": "op-metrics", "namespace": "ops", "pod": "op-0"}
CASES: Mapping[tuple[str, Severity], Case] = {
    ("LLMServiceNoEndpoint", Severity.CRITICAL): Case(
        available("1x30 0x30"),
        {
            "a replica answers": available("1x60"),
            "for a moment": available("1x57 0x3"),
            "it starts for the first time": available("0x60"),
            "at zero": available("1x30 _x30"),
            "at zero after a moment": available("1x52 0x2 stale _x9") | ready(),
            "another process of the operator says that it answers": {
                **available("0x60"),
                f'llmservice_available{{{SERVICE},pod="op-1"}}': "1x60",
            },
        },
    ),
    ("LLMServiceNotReady", Severity.WARNING): Case(
        ready("0x60"),
        {"ready": ready(), "a start": ready("1x40 0x20"), "deleted": ready("0x45 stale _x20")},
    ),
    ("LLMServiceStalled", Severity.WARNING): Case(
        problem("Stalled", "InvalidFlag"),
        {
            "for a moment": problem("Stalled", "InvalidFlag", "_x57 1x3"),
            "it was, for a moment": problem("Stalled", "InvalidFlag", "_x54 1x2 stale _x9") | ready(),
            "another condition": problem("Degraded", "InternalError"),
        },
        OF_SERVICE | {"reason": "InvalidFlag"},
    ),
    ("LLMServiceCrashLooping", Severity.WARNING): Case(
        restarts("_x65 1 _x17 2 2x17 3 3x16 4"),
        {
            "three": restarts("_x65 1 _x17 2 2x17 3 3x20"),
            "long ago": restarts("9x120"),
            "a scrape failed an hour ago": restarts("9x55 stale _x8 9x60", "1x55 0x8 1x60"),
            "nobody scraped an hour ago": restarts("_x100 9x20", "_x100 1x20"),
            "another process counts from 0": restarts("9x100 0x20"),
            "another process has counted few": young(restarts("9x40 _x61 3x18", "1x40 _x61 1x18"), at=101),
        },
        at="120m",
    ),
    ("LLMServiceHung", Severity.WARNING): Case(
        problem("Failure", "EngineHung", "_x50 1 _x9"),
        {
            "another failure": problem("Failure", "EngineDied"),
            "over": problem("Failure", "EngineHung", "1x20 _x40"),
        },
    ),
    ("LLMServiceGPUsNotServing", Severity.WARNING): Case(
        {f'llmservice_gpus{{{SERVICE},state="not_serving"}}': "8x60"},
        {
            "they serve": {f'llmservice_gpus{{{SERVICE},state="serving"}}': "8x60"},
            "a start": {f'llmservice_gpus{{{SERVICE},state="not_serving"}}': "_x40 8x20"},
        },
    ),
    ("LLMServiceQuota", Severity.WARNING): Case(
        problem("Autoscaled", "QuotaBelowMaximum"),
        {"no quota": problem("Autoscaled", "KedaMissing")},
        OF_SERVICE | {"reason": "QuotaBelowMaximum"},
    ),
    ("LLMServicePlannerOff", Severity.INFO): Case(
        {f'llmservice_plan_error_ratio{{{SERVICE},quantity="weights"}}': "-0.2x60"},
        {"in the band": {f'llmservice_plan_error_ratio{{{SERVICE},quantity="weights"}}': "-0.05x60"}},
        OF_SERVICE | {"quantity": "weights"},
    ),
    ("LLMServiceTTFTBudgetBurn", Severity.CRITICAL): fast_burn(TTFT),
    ("LLMServiceTTFTBudgetBurn", Severity.WARNING): slow_burn(TTFT),
    ("LLMServiceITLBudgetBurn", Severity.CRITICAL): fast_burn(ITL),
    ("LLMServiceITLBudgetBurn", Severity.WARNING): slow_burn(ITL),
    ("LLMServiceErrorRate", Severity.CRITICAL): Case(
        ended(stop=90, error=10),
        {
            "few": ended(stop=99, error=1),
            "none at all": ended(stop=0, error=0),
            "a vLLM of others": foreign(ended(stop=90, error=10)),
        },
    ),
    ("LLMServiceAbortRate", Severity.WARNING): Case(
        aborted(30),
        {
            "some": aborted(10),
            "none at all": aborted(0),
            "errors": aborted(10) | ended(stop=60, error=30),
        },
    ),
    ("LLMServiceQueueGrows", Severity.WARNING): Case(
        waiting("0+2x60", "0+1x60"),
        {
            "it is worked off": waiting("200-2x60"),
            "few for so many replicas": waiting("0+1x60", "0x60", "0x60", "0x60"),
            "a vLLM of others": foreign(waiting("0+2x60", "0+1x60")),
        },
    ),
    ("LLMServiceGPUMemoryTight", Severity.WARNING): Case(
        memory("0.99x120", 1),
        {
            "full and nothing preempted": memory("0.99x120", 0),
            "room": memory("0.5x120", 1),
            "a vLLM of others": foreign(memory("0.99x120", 1)),
        },
    ),
    ("LLMServiceHeldRequestsLost", Severity.WARNING): Case(
        held("lost", "pod_failed", "_x55 1x5"),
        {
            "the client went away": held("lost", "client_gone", "0+1x60"),
            "long ago": held("lost", "pod_failed", "1x60"),
            "a scrape failed ten minutes ago": held("lost", "pod_failed", "5x47 stale _x5 5x10", "1x47 0x5 1x10"),
            "nobody scraped ten minutes ago": held("answered", "timed_out", "_x55 5x5", "_x55 1x5"),
        },
    ),
    ("LLMServiceOperatorNotLeading", Severity.CRITICAL): Case(
        leading(0, 0), {"one acts and one stands by": acting(1, 0)}, {}
    ),
    ("LLMServiceOperatorReconcileErrors", Severity.WARNING): Case(
        passes(50, 50), {"a few": passes(95, 5), "no pass": passes(0, 0), "of another": passes(50, 50, NAMESAKE)}, {}
    ),
    ("LLMServiceOperatorInternalErrors", Severity.WARNING): Case(
        internal_errors("0x50 1x10"),
        {
            "none": internal_errors("0x60"),
            "nobody scraped when it was": internal_errors("_x50 7x10"),
            "of another": internal_errors("0x50 1x10", NAMESAKE),
        },
        {"part": "state"},
    ),
    ("LLMServiceOperatorWatchStale", Severity.CRITICAL): Case(
        watch(1, 2), {"all are watched": watch(1, 0), "of another": watch(1, 2, NAMESAKE)}, WATCHED
    ),
    ("LLMServiceCertificateExpires", Severity.WARNING): Case(
        expires(10), {"later": expires(40)}, {"job": "op-metrics", "namespace": "ops", "certificate": "metrics"}
    ),
}
MORE: Mapping[str, Sequence[Case]] = {
    # The operator's restart, of three minutes, begins no `for` anew.
    "LLMServiceNoEndpoint": [Case(available("1x50 0x4 stale _x2 0x3"), {})],
    "LLMServiceNotReady": [Case(ready("0x45 stale _x2 0x15"), {})],
    "LLMServiceStalled": [
        Case(problem("Stalled", "InvalidFlag", "_x51 1x3 stale _x2 1x5"), {}, OF_SERVICE | {"reason": "InvalidFlag"})
    ],
    "LLMServiceGPUsNotServing": [
        Case({f'llmservice_gpus{{{SERVICE},state="not_serving"}}': "8x45 stale _x2 8x15"}, {})
    ],
    "LLMServiceQuota": [
        Case(problem("Stalled", "QuotaExceeded", "1x50 stale _x2 1x10"), {}, OF_SERVICE | {"reason": "QuotaExceeded"})
    ],
    "LLMServicePlannerOff": [
        Case(
            {f'llmservice_plan_error_ratio{{{SERVICE},quantity="weights"}}': "-0.2x45 stale _x2 -0.2x15"},
            {},
            OF_SERVICE | {"quantity": "weights"},
        )
    ],
    # The next process of the operator, whose total is less than the last one's.
    # Nobody gets an answer.
    "LLMServiceAbortRate": [Case({k: v for k, v in aborted(30).items() if "request_success" not in k}, {})],
    "LLMServiceCrashLooping": [
        Case(young(restarts("_x101 4x18", "_x101 1x18"), at=101), {}, at="119m"),
        Case(young(restarts("0x60 3x20 0x5 1x33", "1x120"), at=86), {}, at="119m"),
        Case({**restarts("9x100 stale"), **restarts("_x105 1 2 3 4 5 5x10", "_x103 1x20", "op-1")}, {}, at="120m"),
    ],
    # Engines of one replica.
    "LLMServiceQueueGrows": [
        Case(
            ready()
            | {f'vllm:num_requests_waiting{{{SERVICE},pod="p",engine="{number}"}}': "0+0.2x60" for number in range(4)},
            {},
        )
    ],
    # A preemption makes room.
    "LLMServiceGPUMemoryTight": [Case(memory("0.99 0.9 " * 60, 1), {})],
    "LLMServiceOperatorNotLeading": [
        Case({}, {}, {"job": "op-metrics", "namespace": "ops"}),
        Case(acting(0, 0), {}, {}),
        Case(acting(0, 0) | leading(0, 0), {}, {}),
    ],
    "LLMServiceOperatorWatchStale": [
        Case(watch(0, 0), {}, WATCHED),
    ],
    "LLMServiceHeldRequestsLost": [
        Case(held("answered", "timed_out", "0x55 1x5"), {}),
        Case(held("answered", "full", "_x55 1x5"), {}),
        Case(held("lost", "internal", "1x60") | held("answered", "internal", "0x55 1x5"), {}),
    ],
}
"""Other bad cases; of LLMServiceOperatorNotLeading: nothing is scraped, and a leader that may not watch."""
