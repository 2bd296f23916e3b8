"""What the tiny model is made of, without the libraries that teach it."""

from dataclasses import replace
from pathlib import Path

import pytest

from localcluster.tinymodel.cache import model_folder, model_key
from localcluster.tinymodel.config import CHAT, TinyConfig
from localcluster.tinymodel.pairs import PAIRS

VERSIONS = {"torch": "2.13.0", "transformers": "5.19.0"}
SOURCES = {"teach.py": b"x = 1", "pairs.py": b"y = 2"}


def test_pairs_are_a_few_dozen_questions_each_with_an_answer_of_one_line_that_a_terminal_shows() -> None:
    assert len({question for question, _ in PAIRS}) == len({answer for _, answer in PAIRS}) == len(PAIRS) >= 24
    for question, answer in PAIRS:
        assert (question + answer).isascii(), question
        assert (question[-1], answer[-1]) == ("?", "."), question
        assert 40 <= len(answer) <= 120, answer


MOVED = {"teach.py": b"x = 1y = 2", "pairs.py": b""}


@pytest.mark.parametrize(
    ("config", "versions", "sources"),
    [
        (replace(CHAT, num_layers=1), VERSIONS, SOURCES),
        (replace(CHAT, seed=CHAT.seed + 1), VERSIONS, SOURCES),
        (CHAT, {**VERSIONS, "torch": "2.14.0"}, SOURCES),
        (CHAT, VERSIONS, {**SOURCES, "pairs.py": b"y = 3"}),
        (CHAT, VERSIONS, MOVED),
    ],
    ids=["sizes", "seed", "torch", "pairs", "bytes moved between files"],
)
def test_another_model_has_another_key(config: TinyConfig, versions: dict[str, str], sources: dict[str, bytes]) -> None:
    assert model_key(config, versions, sources) != model_key(CHAT, VERSIONS, SOURCES)


def test_the_same_model_has_the_same_key_in_any_order() -> None:
    turned = dict(reversed(SOURCES.items()))
    assert model_key(CHAT, dict(reversed(VERSIONS.items())), turned) == model_key(CHAT, VERSIONS, SOURCES)


def test_the_model_lies_in_the_users_cache_folder(tmp_path: Path) -> None:
    folder = model_folder(environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "llmservice-operator" / "models"
