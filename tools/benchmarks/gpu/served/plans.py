"""Plan beside measured for more than one 8B, two attention back ends, speculation, and sleep mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu.served import cases, engine_log, traffic
from benchmarks.gpu.served.cases import GEMMA, LARGE, SMALL, Case, Machine, merged
from benchmarks.gpu.served.server import StepFailed, started
from benchmarks.gpu.served.serving import LENGTH, START_SECONDS, Serving, eight_billion, served, serving, start_values
from benchmarks.gpu.served.steps import Context, Group, Step, Values, alone
from benchmarks.gpu.served.without_vllm import recorded

EAGER = {"compilation": {"enforceEager": True}}
SPECULATION = {"speculativeDecoding": {"method": "ngram", "numSpeculativeTokens": 4}}
RECORDED_ON = Machine("NVIDIA H100 80GB HBM3", 79.19, "0.26.0")
SLEEPING = eight_billion(**EAGER, runtime={"sleepMode": True})


def _planning(case: Case, name: str) -> Callable[[Context, object], Any]:
    """One start, whose figures are put beside the plan; one that is refused is a figure too."""

    async def work(context: Context, _: object) -> Values:
        async with started(context.place, case) as server:
            try:
                values = start_values(await serving(server))
                outcome = "served"
            except StepFailed as failed:
                failure = server.failure()
                if failure is None:
                    raise
                log = server.figures()
                outcome = "too_long" if "estimated_max_len" in log else "oom"
                values = {"log": log, "reason": f"{failure.reason}: {failure.message}", "tail": list(failed.log[-5:])}
        made = cases.startup(f"{context.machine.product}-{name}", case, context.machine, values["log"], outcome)
        return values | {"plan": cases.planned(case, context.machine), "startup": made}

    return work


def _replay(case: Case) -> Callable[[Context], Values]:
    def replay(_: Context) -> Values:
        return {"log": engine_log.figures(recorded("start-0.26")), "plan": cases.planned(case, RECORDED_ON)}

    return replay


def _plan(name: str, title: str, case: Case, *, needs_cuda: bool = False) -> Group:
    step = Step(name, title, START_SECONDS, _planning(case, name), _replay(case) if needs_cuda else None)
    return alone(step, case)


async def _attention(context: Context, ready: Serving) -> Values:
    long = await traffic.one(ready.server, traffic.text(context.sized(7000, 500)), 8)
    found = await traffic.throughput(ready.server, context.sized(16, 2), context.sized(2000, 32), context.sized(128, 8))
    backend = ready.server.figures().get("attention_backend")
    return found | {"backend": backend, "long_first_token_ms": round(1000 * traffic.first_token(long), 2)}


def _backend(name: str, backend: str) -> Group:
    step = Step(f"attention-{name}", f"attention with {backend}", 60, _attention, lambda _: {"backend": backend})
    case = eight_billion(**EAGER, attention={"backend": backend})
    return Group(step.name, (step,), START_SECONDS, served(case), case)


async def _speculation(context: Context, ready: Serving) -> Values:
    """Text that repeats itself: what came before is a good guess of what comes next."""
    tokens = context.sized(256, 24)
    prompt = traffic.text(16) + "one two three four five six seven eight nine ten. " * 12
    began = time.monotonic()
    await traffic.one(ready.server, prompt, tokens)
    took = time.monotonic() - began
    drafted = await ready.server.metrics("vllm:spec_decode_num_draft_tokens_total")
    accepted = await ready.server.metrics("vllm:spec_decode_num_accepted_tokens_total")
    return {"tokens_per_second": round(tokens / took, 1), "drafted": drafted, "accepted": accepted}


def _speculating(name: str, title: str, spec: Mapping[str, Any]) -> Group:
    step = Step(name, title, 45, _speculation)
    case = eight_billion(**merged(EAGER, spec))
    return Group(name, (step,), START_SECONDS, served(case), case)


async def _sleep(context: Context, ready: Serving) -> Values:
    """Levels 1 and 2: what is given back, the seconds to wake, and whether the answer is the same after level 1."""
    server, prompt, found = ready.server, traffic.text(64), dict[str, Any]()
    before = await traffic.answer_ids(server, prompt, 16)
    for level in (1, 2):
        began = time.monotonic()
        await server.manage(f"/sleep?level={level}")
        asleep = time.monotonic()
        log = server.figures()
        await server.manage("/wake_up")
        found[f"level_{level}"] = {
            "freed_gib": log.get("sleep_freed_gib"),
            "used_gib": log.get("sleep_used_gib"),
            "sleep_seconds": round(asleep - began, 2),
            "wake_seconds": round(time.monotonic() - asleep, 2),
        }
        if level == 1:
            found["same_answer"] = await traffic.answer_ids(server, prompt, 16) == before
    return found


def _replayed_sleep(_: Context) -> Values:
    log = engine_log.figures(recorded("start-0.26"))
    return {"level_1": {"freed_gib": log["sleep_freed_gib"], "used_gib": log["sleep_used_gib"]}}


FP8_KV = eight_billion(precision={"kvCache": "fp8"})
FP8_WEIGHTS = eight_billion(precision={"weights": "fp8"})
GROUPS: tuple[Group, ...] = (
    _plan("plan-fp8-kv", "fp8 KV cache", FP8_KV, needs_cuda=True),
    _plan("plan-fp8-weights", "fp8 weights, quantized at load", FP8_WEIGHTS, needs_cuda=True),
    _plan("plan-long", "131,072 tokens", eight_billion(batching={"maxModelLen": 131072})),
    _plan("plan-sequences", "max_num_seqs 1,024", eight_billion(batching={"maxNumSeqs": 1024})),
    _plan("plan-1.5b", "Qwen2.5-1.5B", Case(SMALL, LENGTH)),
    _plan("plan-gemma", "Gemma-3-12B, text only", Case(GEMMA, LENGTH)),
    _plan("plan-32b", "Qwen3-32B", Case(LARGE, {"batching": {"maxModelLen": 4096}})),
    _backend("flash", "FLASH_ATTN"),
    _backend("triton", "TRITON_ATTN"),
    _speculating("speculation", "n-gram speculation on text that repeats itself", SPECULATION),
    _speculating("no-speculation", "the same without speculation", {}),
    Group(
        "sleep",
        (Step("sleep", "sleep mode at levels 1 and 2", 120, _sleep, _replayed_sleep),),
        START_SECONDS,
        served(SLEEPING),
        SLEEPING,
    ),
)
