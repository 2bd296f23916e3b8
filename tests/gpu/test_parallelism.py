"""A model over two GPUs says what it says on one."""

from __future__ import annotations

from tests.gpu.conftest import ALIKE, Gpus, Reference
from tests.support.agreement import agreement, greedy
from tests.support.measured import Record


def test_two_gpus_share_the_weights_and_say_the_same(gpu: Gpus, reference: Reference, record: Record) -> None:
    with gpu.serving("tensor-parallel", parallelism={"tensorParallelSize": 2}) as server:
        said = greedy(server)
    taken = server.status["measured"]["modelMemoryGiB"]
    assert taken < reference.weights_gib
    same = agreement(reference.said, said)
    assert same >= ALIKE
    record(agreement=round(same, 3), weights_gib_each=taken, reference_weights_gib=reference.weights_gib)
