"""What the tiny model is made of, without the libraries that teach it."""

from dataclasses import replace
from pathlib import Path

import pytest

from localcluster.tinymodel.cache import model_folder, model_key
from localcluster.tinymodel.config import CHAT, TinyConfig
from localcluster.tinymodel.pairs import PAIRS

VERSIONS = {"torch": "2.13.0", "transformers": "5.19.0"}
SOURCES = {"teach.py": b"x = 1", "pairs.py": b"y = 2"}


def test_there_are_a_few_dozen_pairs() -> None:
    assert len(PAIRS) >= 24


def test_no_question_is_asked_twice_and_no_answer_given_twice() -> None:
    assert len({question for question, _ in PAIRS}) == len({answer for _, answer in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize(("question", "answer"), PAIRS, ids=[question for question, _ in PAIRS])
def test_an_answer_is_one_line_that_a_terminal_shows(question: str, answer: str) -> None:
    assert question.isascii()
    assert question.endswith("?")
    assert 40 <= len(answer) <= 120
    assert answer.isascii()
    assert answer.endswith((".", "client."))


@pytest.mark.parametrize(
    ("config", "versions", "sources"),
    [
        pytest.param(replace(CHAT, num_layers=1), VERSIONS, SOURCES, id="sizes"),
        pytest.param(replace(CHAT, seed=CHAT.seed + 1), VERSIONS, SOURCES, id="seed"),
        pytest.param(CHAT, {**VERSIONS, "torch": "2.14.0"}, SOURCES, id="torch"),
        pytest.param(CHAT, VERSIONS, {**SOURCES, "pairs.py": b"y = 3"}, id="pairs"),
        pytest.param(CHAT, VERSIONS, {"teach.py": b"x = 1y = 2", "pairs.py": b""}, id="bytes moved between files"),
    ],
)
def test_another_model_has_another_key(config: TinyConfig, versions: dict[str, str], sources: dict[str, bytes]) -> None:
    assert model_key(config, versions, sources) != model_key(CHAT, VERSIONS, SOURCES)


def test_the_same_model_has_the_same_key_in_any_order() -> None:
    turned = dict(reversed(SOURCES.items()))
    assert model_key(CHAT, dict(reversed(VERSIONS.items())), turned) == model_key(CHAT, VERSIONS, SOURCES)


def test_the_model_lies_in_the_users_cache_folder(tmp_path: Path) -> None:
    folder = model_folder(environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "llmservice-operator" / "models"


def test_a_head_is_as_wide_as_vllms_cpu_kernels_need() -> None:
    assert CHAT.head_dim in (32, 64, 80, 96, 112, 128)
    assert CHAT.num_heads % CHAT.num_kv_heads == 0
