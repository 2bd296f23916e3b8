"""Whatever is in a model's files, what reads them before vLLM gives an answer or a failure of its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from llmservice_fetch.inspection import inspect
from llmservice_planner.versions import check_extra_args
from llmservice_runtime.contract import Failure, FailureReason, Measured
from llmservice_runtime.inspection.inspected import Inspection
from llmservice_runtime.preflight import cpu_features, model_checks, model_files
from llmservice_runtime.supervisor.log_reader import measure
from llmservice_runtime.supervisor.vllm_process import read_flags

from tests.unit.hostile import texts

ROOT = Path(__file__).parents[3]
CONFIG = {
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "vocab_size": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "quantization_config": {"quant_method": "awq", "bits": 4, "ignore": ["model.layers.0.q"]},
    "text_config": None,
}
PARAMS = {"dim": 64, "n_layers": 4, "n_heads": 4, "sliding_window": [0, 4096], "moe": {"num_experts": 2}, "yarn": {}}
INDEX = {"metadata": {}, "weight_map": {"a": "model.safetensors"}}
TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}
HEADER = {"model.layers.0.self_attn.q_proj.weight": {"dtype": "U8", "shape": [2, 4], "data_offsets": [0, 8]}}
DEEP = "[" * 100_000 + "]" * 100_000
FLAGS = read_flags(["--model", "/m", "--tensor-parallel-size", "3", "--quantization", "fp8"])


def model(folder: Path, **changed: str) -> Path:
    """A model of these texts; by default a good one."""
    folder.mkdir(exist_ok=True)
    good = {"config": CONFIG, "tokenizer": TOKENIZER, "header": HEADER, "model_safetensors_index": INDEX}
    contents = {name: json.dumps(document) for name, document in good.items()} | changed
    header = contents.pop("header").encode(errors="surrogatepass")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    for name, text in contents.items():
        file = folder / f"{name.replace('_', '.')}.json"
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
    return folder


def found(folder: Path) -> Failure | None:
    return next(model_files.check_files(folder, needs_weights=True), None)


def seen_by_all(folder: Path) -> None:
    """Everything that reads a model's files before vLLM does."""
    list(model_files.check_files(folder, needs_weights=True))
    config = model_files.read_config(folder)
    list(model_files.check_config(config, FLAGS, "auto"))
    cpu_features.declared(config)
    extended = model_checks.extended(config, FLAGS, "yarn:4")
    assert isinstance(extended, Failure) or sum(map(len, extended)) < 100_000
    for method in ("eagle", "draft_model"):
        list(model_checks.check_draft(folder, folder.parent / "draft", method))
    inspection = inspect(str(folder), {})
    assert Inspection.from_json(inspection.to_json()) is not None


def config(**changed: Any) -> dict[str, str]:
    return {"config": json.dumps(CONFIG | changed)}


HOSTILE = {
    "deep sections": {"config": '{"text_config":' * 900 + "{}" + "}" * 900},
    "as many sections as may be read": {"config": '{"text_config":' * 20 + json.dumps(CONFIG) + "}" * 20},
    "control characters": config(hidden_size="\x1b[2J"),
    "a rope that is an object": config(rope_scaling={"type": {"a": 1}}),
    "a long rope": config(rope_scaling={"factor": [1.5] * 90_000}),
    "heads without end": config(num_attention_heads=2**62),
    "a layer of 5000 digits": config(quantization_config={"ignore": [f"layers.{'9' * 5000}.q", "layers.1.q"]}),
    "an index that is a list": {"model_safetensors_index": "[]"},
    "tokens of several types": {"tokenizer": '{"model": {"vocab": [["a"], [1], [[]]]}}'},
    "a layer of 900 digits": {"header": json.dumps(HEADER).replace("layers.0", "layers." + "9" * 900)},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_strangers_may_write(tmp_path: Path, case: str) -> None:
    model(tmp_path / "draft")
    seen_by_all(model(tmp_path / "m", **HOSTILE[case]))


def test_mistrals_own_format(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "config.json").unlink()
    for params in (PARAMS | {"n_layers": 2**62}, PARAMS | {"moe": [1]}, PARAMS | {"sliding_window": [[]]}):
        (folder / "params.json").write_text(json.dumps(params))
        assert len(inspect(str(folder), {}).to_json()) < 4096


NO_FILES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "broken link": lambda file: file.symlink_to("nowhere"),
}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file(tmp_path: Path, kind: str, name: str) -> None:
    """As a copied cache of a hub has them, without what its links lead to."""
    folder = model(tmp_path / "m")
    (folder / name).unlink()
    NO_FILES[kind](folder / name)
    assert found(folder) is not None or name == "config.json" or kind == "folder"
    assert model_files.read_config(folder) == {} or name != "config.json"


def test_infinities_that_real_models_have_are_no_reason_to_refuse_them(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", config='{"time_step_limit": [0.0, Infinity], "hidden_size": 64}')
    assert model_files.read_config(folder) == {"time_step_limit": [0.0, None], "hidden_size": 64}
    assert inspect(str(folder), {}).failure is None


def test_a_broken_index_is_told(tmp_path: Path) -> None:
    failure = found(model(tmp_path / "m", model_safetensors_index='{"weight_map": 5}'))
    assert failure is not None
    assert failure.reason is FailureReason.WEIGHTS_UNREADABLE
    assert "weight_map does not name a file for each tensor" in failure.message


def test_json_in_flags_is_bounded_too() -> None:
    assert read_flags(["--speculative-config", DEEP]).draft_model == ""
    assert read_flags(["--tensor-parallel-size", "9" * 5000, "--port", "²"]).tensor_parallel_size == 1
    assert list(check_extra_args(["--compilation-config", '{"mode": NaN}'], "0.32.0")), (
        "a key that belongs to a field is seen"
    )
    list(check_extra_args(["--compilation-config", DEEP], "0.32.0"))


@pytest.mark.parametrize("size", ["1.2.3", "9" * 400, "."])
def test_lines_of_the_log_that_look_like_measurements(size: str) -> None:
    assert measure(Measured(), f"Model loading took {size} GiB memory and 1 seconds") == Measured()


@given(texts(CONFIG), texts(INDEX), texts(TOKENIZER), texts(HEADER))
def test_whatever_is_written(
    tmp_path_factory: pytest.TempPathFactory, config: str, index: str, tokenizer: str, header: str
) -> None:
    base = tmp_path_factory.getbasetemp()
    model(base / "draft")
    folder = base / "fuzzed-model"
    seen_by_all(model(folder, config=config, model_safetensors_index=index, tokenizer=tokenizer, header=header))


def test_names_of_files_that_are_not_unicode(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", model_safetensors_index='{"weight_map": {"a": "absent"}}')
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b[2J.safetensors")).write_text("x")
    for name in ("absent", "model.safetensors.index.json", "config.json"):
        (folder / name).unlink(missing_ok=True)
        failure = found(folder)
        assert failure is not None
        assert Failure.from_json(failure.to_json()) is not None
        assert "\x1b" not in inspect(str(folder), {}).to_json()


OWN_JSON = {
    "runtime/llmservice_runtime/bounded_json.py": "the reader itself",
    "runtime/llmservice_runtime/fetch_protocol.py": "what it wrote a line before",
    "runtime/llmservice_runtime/inspection/config_json.py": "what it wrote a line before",
    "runtime/llmservice_runtime/inspection/inspected.py": "what it wrote a line before",
    "runtime/llmservice_runtime/middleware.py": "the supervisor's list of connections",
    "runtime/llmservice_vllm/extract.py": "what it wrote a line before",
    "runtime/llmservice_vllm/extract_messages.py": "the package's own data",
    "runtime/llmservice_vllm/versions.py": "the package's own data",
    "runtime/llmservice_fetch/command.py": "what it wrote a line before",
    "runtime/llmservice_fetch/bucket_stores.py": "the user's own key, of which a part is hidden",
}


def test_what_others_write_passes_the_bounded_reader() -> None:
    """Whoever reads JSON in another way says here why that may be."""
    parses = re.compile(r"\bjson\.loads?\(|\bpickle\.loads?\(|JSONDecoder")
    found = {
        str(path.relative_to(ROOT))
        for package in ("runtime", "fetch")
        for path in (ROOT / package).rglob("*.py")
        if parses.search(path.read_text())
    }
    assert found == OWN_JSON.keys()
