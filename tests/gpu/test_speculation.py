"""Guesses out of the prompt, checked on a GPU."""

from __future__ import annotations

from tests.gpu.conftest import ALIKE, Gpus, Reference
from tests.support.agreement import agreement, greedy
from tests.support.measured import Record

SPECULATION = {"method": "ngram", "numSpeculativeTokens": 4, "promptLookupMin": 2, "promptLookupMax": 4}
REPEAT = "Repeat this sentence ten times, word for word: the quick brown fox jumps over the lazy dog."


def test_guesses_are_made_and_confirmed_and_change_no_answer(gpu: Gpus, reference: Reference, record: Record) -> None:
    with gpu.serving("ngram", speculativeDecoding=SPECULATION) as server:
        said = greedy(server)
        server.say(REPEAT)
        metrics = server.metrics()
    drafted = metrics.value("vllm:spec_decode_num_draft_tokens_total")
    accepted = metrics.value("vllm:spec_decode_num_accepted_tokens_total")
    assert drafted > 0
    assert accepted > 0
    same = agreement(reference.said, said)
    assert same >= ALIKE
    record(agreement=round(same, 3), drafted=drafted, accepted=accepted)
