"""Attention backends: the one that is asked for computes, and says what the others say."""

from __future__ import annotations

import re

import pytest

from tests.gpu.conftest import ALIKE, Gpus, Reference
from tests.support.agreement import agreement, greedy
from tests.support.measured import Record


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"])
def test_a_backend_computes_what_the_others_do(gpu: Gpus, reference: Reference, backend: str, record: Record) -> None:
    name = backend.lower().replace("_", "-")
    with gpu.serving(name, attention={"backend": backend}) as server:
        said = greedy(server)
    assert re.search(rf"\b{backend} backend", server.log)
    same = agreement(reference.said, said)
    assert same >= ALIKE
    record(backend=backend, agreement=round(same, 3), start_seconds=server.status["measured"]["startSeconds"])
