"""CUDA graphs are recorded as the spec asks, or not at all, and change no answer but by rounding."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.gpu.conftest import ALIKE, Gpus, Reference
from tests.support.agreement import agreement, greedy
from tests.support.measured import Record

RECORDED = re.compile(r"Capturing CUDA graphs \((?:[\w -]+, )?(PIECEWISE|FULL)\)")
KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    # name: (compilation, kinds of graphs that vLLM says it records)
    "graphs-none": ({"cudaGraphs": "none"}, set()),
    "graphs-piecewise": ({"cudaGraphs": "piecewise"}, {"PIECEWISE"}),
    "graphs-full-decode": ({"cudaGraphs": "fullDecodeOnly"}, {"FULL"}),
    "graphs-both": ({"cudaGraphs": "fullAndPiecewise"}, {"PIECEWISE", "FULL"}),
    "eager": ({"enforceEager": True}, set()),
}


@pytest.mark.parametrize("name", KINDS)
def test_graphs_are_recorded_as_asked(gpu: Gpus, reference: Reference, name: str, record: Record) -> None:
    compilation, kinds = KINDS[name]
    # A backend that can be recorded in every way, on every GPU.
    with gpu.serving(name, compilation=compilation, attention={"backend": "TRITON_ATTN"}) as server:
        said = greedy(server)
    assert set(RECORDED.findall(server.log)) == kinds
    same = agreement(reference.said, said)
    assert same >= ALIKE
    record(**compilation, agreement=round(same, 3), start_seconds=server.status["measured"]["startSeconds"])
