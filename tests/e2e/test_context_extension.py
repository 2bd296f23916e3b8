"""YaRN: a model serves more than it was made for, where the spec asks for it, and refuses clearly where not."""

from __future__ import annotations

import httpx
import pytest

from localcluster.tinymodel.config import CHAT
from localcluster.tinymodel.pairs import PAIRS
from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.patience import at_most
from tests.support.serving import Server, serving

pytestmark = pytest.mark.full

FACTOR = 4
QUESTION, ANSWER = PAIRS[0]
WORDS = "The quick brown fox jumps over the lazy dog. "


def long_request(server: Server, tokens: int) -> httpx.Response:
    """A prompt of about so many tokens; vLLM's own tokenizer counts them."""
    text = WORDS * 4
    counted = httpx.post(f"{server.url}/tokenize", json={"model": server.name, "prompt": text}, trust_env=False)
    per_word = counted.raise_for_status().json()["count"] / 4
    body = {"model": server.name, "prompt": WORDS * round(tokens / per_word), "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=at_most(300), trust_env=False)


def test_without_the_extension_a_longer_request_is_refused_with_a_clear_400(
    cluster: Cluster, shared_namespace: str, record: Record
) -> None:
    with serving(cluster, shared_namespace, "as-made", batching={"maxModelLen": None}) as server:
        answer = long_request(server, CHAT.max_position_embeddings * 2)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert str(CHAT.max_position_embeddings) in message
    record(status=answer.status_code, message=message)


def test_with_the_extension_it_is_served(cluster: Cluster, shared_namespace: str, record: Record) -> None:
    spec = {"batching": {"maxModelLen": None}, "contextExtension": {"method": "yarn", "factor": FACTOR}}
    with serving(cluster, shared_namespace, "extended", **spec) as server:
        answer = long_request(server, CHAT.max_position_embeddings * 2)
        (model,) = httpx.get(f"{server.url}/v1/models", trust_env=False).json()["data"]
        short = server.say(QUESTION)
        beyond = long_request(server, CHAT.max_position_embeddings * FACTOR + 500)
    assert answer.status_code == 200, answer.text
    prompt_tokens = answer.json()["usage"]["prompt_tokens"]
    assert prompt_tokens > CHAT.max_position_embeddings
    assert model["max_model_len"] == CHAT.max_position_embeddings * FACTOR
    assert beyond.status_code == 400
    record(
        original=CHAT.max_position_embeddings,
        factor=FACTOR,
        max_model_len=model["max_model_len"],
        served_prompt_tokens=prompt_tokens,
        short_answer_is_the_taught_one=short == ANSWER,
    )
