"""Precisions that only a GPU has: what they take, and how far they agree with the model as it is."""

from __future__ import annotations

import os

import pytest

from tests.gpu.conftest import ALIKE, Gpus, Reference
from tests.support.agreement import QUESTIONS, agreement, greedy
from tests.support.measured import Record

NVFP4 = os.environ.get("GPU_NVFP4_URI", "")


def test_fp8_weights_take_less_and_say_nearly_the_same(gpu: Gpus, reference: Reference, record: Record) -> None:
    with gpu.serving("weights-fp8", precision={"weights": "fp8"}) as server:
        said = greedy(server)
    taken = server.status["measured"]["modelMemoryGiB"]
    assert taken < reference.weights_gib
    same = agreement(reference.said, said)
    assert same >= ALIKE
    record(agreement=round(same, 3), weights_gib=taken, reference_weights_gib=reference.weights_gib)


def test_an_fp8_cache_holds_fp8_and_says_nearly_the_same(gpu: Gpus, reference: Reference, record: Record) -> None:
    with gpu.serving("kv-fp8", precision={"kvCache": "fp8"}) as server:
        said = greedy(server)
        held = server.metrics().labels("vllm:cache_config_info")["cache_dtype"]
    assert held.startswith("fp8")
    same = agreement(reference.said, said)
    assert same >= ALIKE
    record(agreement=round(same, 3), cache_dtype=held, kv_cache_tokens=server.status["measured"]["kvCacheTokens"])


@pytest.mark.skipif(not NVFP4, reason="GPU_NVFP4_URI names no NVFP4 checkpoint of ModelOpt")
def test_an_nvfp4_checkpoint_answers_every_question(gpu: Gpus, record: Record) -> None:
    with gpu.serving("nvfp4", model={"uri": NVFP4}, precision={"quantization": "modelopt_fp4"}) as server:
        said = greedy(server, QUESTIONS)
    assert all(spoken.text.strip() for spoken in said.values())
    record(answers=len(said), weights_gib=server.status["measured"]["modelMemoryGiB"])
