"""A model is looked at where it lies: its config.json and the headers of its weights, never the weights."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch import inspection
from llmservice_fetch.inspection import Budget, inspect
from llmservice_runtime.contract import Failure
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.inspection.inspected import Inspection

from tests.support.fetching import TOKEN
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import PATIENCE
from tests.support.weights import header_bytes, named_tensors, safetensors
from tests.unit.runtime.inspected_files import CONFIG, FIRST, INSPECTED, SECOND, WHOLE, files


@pytest.fixture
def hub() -> Iterator[Hub]:
    repos = {
        "org/sharded": Repo(files()),
        "org/gated": Repo(files(), gated=True),
        "org/private": Repo(files(), private=True),
    }
    with serving(Hub(repos, {TOKEN: {"org/gated", "org/private"}, "hf_ofSomebodyElse": set()})) as running:
        yield running


def at(hub: Hub, repo: str, budget: Budget | None = None, **environment: str) -> Inspection:
    budget = budget or Budget(sleep=lambda _: None)
    return inspect(f"hf://{repo}", {"HF_ENDPOINT": hub.url, **environment}, budget=budget)


def failure(found: Inspection, reason: R) -> Failure:
    assert found.failure is not None, found
    assert found.failure.reason is reason, found.failure
    return found.failure


def test_a_repository(hub: Hub) -> None:
    found = at(hub, "org/sharded")
    assert found.failure is None
    assert found.revision == hub.repos["org/sharded"].commit
    assert found.config == INSPECTED | {"torch_dtype": "bfloat16"}, "the dtype is the tensors', as vLLM takes it"
    assert found.tensors == WHOLE


def test_no_weights_are_read(hub: Hub) -> None:
    at(hub, "org/sharded")
    assert hub.sent == {
        "model-00001-of-00002.safetensors": header_bytes(FIRST),
        "model-00002-of-00002.safetensors": header_bytes(SECOND),
    }


def test_what_the_config_says_of_its_dtype_stays(hub: Hub) -> None:
    hub.repos["org/sharded"].files["config.json"] = json.dumps(CONFIG | {"torch_dtype": "float16"}).encode()
    assert at(hub, "org/sharded").config["torch_dtype"] == "float16"


def test_a_server_that_ignores_ranges_is_left_early(hub: Hub) -> None:
    """The header stands at the beginning: what comes behind it is not waited for."""
    big = named_tensors({"model.layers.0.mlp.up_proj.weight": ("U8", (60_000_000,))})
    hub.repos["org/sharded"] = Repo(files({"model.safetensors": big}))
    hub.ignores_ranges = True
    found = at(hub, "org/sharded")
    assert found.tensors == {"feedForward": 60_000_000, "parameters": 60_000_000, "dtype": "uint8"}
    assert hub.sent["model.safetensors"] < 30_000_000


def test_what_passes_is_tried_again(hub: Hub) -> None:
    hub.failures = 3
    assert at(hub, "org/sharded").tensors == WHOLE


def test_trying_again_has_an_end(hub: Hub) -> None:
    """A service whose hub is away may have its model in a cache, and waits for this."""
    hub.failures = 1000
    slept: list[float] = []
    found = at(hub, "org/sharded", Budget(sleep=slept.append))
    remedy = failure(found, R.MODEL_DOWNLOAD_FAILED).remedy
    assert slept == [1, 2, 4]
    assert "spec.model.architecture" in remedy
    assert "cache" not in remedy, "nothing was fetched that could be kept"


def test_all_requests_share_one_budget(hub: Hub) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    hub.failures = 1000
    found = at(hub, "org/sharded", Budget(seconds=2.5, clock=lambda: now, sleep=sleep))
    assert "(3 times in a row)" in failure(found, R.MODEL_DOWNLOAD_FAILED).message
    assert now == pytest.approx(2.5)


def test_a_hub_that_is_silent_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "TIMEOUT_SECONDS", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started = time.monotonic()
        found = at(hub, "org/sharded")
    assert "timed out (4 times in a row)" in failure(found, R.MODEL_DOWNLOAD_FAILED).message
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize(
    ("repo", "token", "reason", "words"),
    [
        pytest.param("org/gated", "", R.MODEL_ACCESS_DENIED, "spec.model.hfTokenSecretRef", id="gated, no token"),
        pytest.param("org/sharded", "hf_expired", R.MODEL_TOKEN_REFUSED, "does not accept the token", id="bad token"),
        pytest.param("org/sharded@v9", "", R.MODEL_REVISION_NOT_FOUND, "'v9'", id="no revision"),
    ],
)
def test_why_there_are_no_facts(hub: Hub, repo: str, token: str, reason: R, words: str) -> None:
    found = at(hub, repo, HF_TOKEN=token)
    reported = failure(found, reason)
    assert reported.phase is None
    assert words in f"{reported.message} {reported.remedy}"


def without(content: bytes, count: int) -> bytes:
    return content[: len(content) - count]


BROKEN: dict[str, tuple[dict[str, bytes | None], R, str]] = {
    "no config": ({**files(), "config.json": None}, R.MODEL_NOT_FOUND, "has no config.json; it holds: README.md"),
    "a config that is no object": ({**files(), "config.json": b"[]"}, R.MODEL_CORRUPT, "not a JSON object"),
    "a config of megabytes": ({**files(), "config.json": b" " * (5 << 20)}, R.MODEL_CORRUPT, "5242880 bytes"),
    "a shard cut short": ({**files({"model.safetensors": without(FIRST, 7)})}, R.MODEL_CORRUPT, "cut short"),
    "a git-lfs pointer": (
        {**files({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"})},
        R.MODEL_CORRUPT,
        "not the header",
    ),
    "an index of other files": (
        {**files(), "model-00002-of-00002.safetensors": None},
        R.WEIGHTS_UNREADABLE,
        "names files that are not in",
    ),
    "an index that is none": ({**files(), "model.safetensors.index.json": b"{}"}, R.MODEL_CORRUPT, "index.json of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_the_files(hub: Hub, name: str) -> None:
    contents, reason, words = BROKEN[name]
    hub.repos["org/sharded"] = Repo({path: text for path, text in contents.items() if text is not None})
    found = at(hub, "org/sharded")
    assert words in failure(found, reason).message
    assert found.revision == hub.repos["org/sharded"].commit


TENSORLESS = {
    "PyTorch's": {"pytorch_model.bin": b"x" * 99},
    "GGUF": {"model.Q4_K_M.gguf": b"x" * 99},
    "none yet": {},
}


@pytest.mark.parametrize("name", TENSORLESS)
def test_without_safetensors_there_are_no_sizes(hub: Hub, name: str) -> None:
    hub.repos["org/sharded"] = Repo(files(TENSORLESS[name]))
    found = at(hub, "org/sharded")
    assert (found.failure, found.config, found.tensors) == (None, INSPECTED, None)


COPIES = {
    "files that the index does not name": {"extra.safetensors": FIRST},
    "other runtimes' folders": {"original/consolidated.00.safetensors": FIRST, "onnx/model.onnx": b"x"},
}


@pytest.mark.parametrize("name", COPIES)
def test_only_what_vllm_loads_is_counted(hub: Hub, name: str) -> None:
    hub.repos["org/sharded"] = Repo(files() | COPIES[name])
    assert at(hub, "org/sharded").tensors == WHOLE


def test_weights_in_folders_are_of_something_else(hub: Hub) -> None:
    hub.repos["org/sharded"] = Repo(files({"model.safetensors": FIRST, "vae/model.safetensors": SECOND}))
    assert (at(hub, "org/sharded").tensors or {}).keys() == {"embedding", "attention", "parameters", "dtype"}


def test_what_modelopt_wrote_beside_the_config(hub: Hub) -> None:
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    hub.repos["org/sharded"].files["hf_quant_config.json"] = json.dumps(beside).encode()
    assert at(hub, "org/sharded").config["quantization_config"] == beside


def test_mistrals_own_format(hub: Hub) -> None:
    params = {
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 16,
        "hidden_dim": 256,
        "vocab_size": 1000,
        "sliding_window": [None, 32],
        "quantization": {"qformat_weight": "fp8_e4m3"},
    }
    weights = named_tensors(
        {"tok_embeddings.weight": ("BF16", (1000, 64)), "layers.0.attention.wq.weight": ("BF16", (64, 64))}
    )
    hub.repos["org/sharded"] = Repo(
        {"params.json": json.dumps(params).encode(), "consolidated.safetensors": weights, "tekken.json": b"{}"}
    )
    found = at(hub, "org/sharded")
    assert found.tensors == {"embedding": 128_000, "attention": 8192, "parameters": 68_096, "dtype": "bfloat16"}
    assert found.config == {
        "architectures": ["MistralForCausalLM"],
        "head_dim": 16,
        "hidden_size": 64,
        "intermediate_size": 256,
        "layer_types": ["full_attention", "sliding_attention"],
        "max_position_embeddings": 128_000,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "quantization_config": {"quant_method": "fp8", "qformat_weight": "fp8_e4m3"},
        "sliding_window": 32,
        "torch_dtype": "bfloat16",
        "vocab_size": 1000,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_folder(folder: Path) -> None:
    found = inspect(str(folder), {})
    assert (found.failure, found.revision, found.tensors) == (None, None, WHOLE)


def test_a_config_alone(folder: Path) -> None:
    other = folder / "llama.json"
    (folder / "config.json").rename(other)
    found = inspect(str(other), {})
    assert (found.failure, found.config, found.tensors) == (None, INSPECTED, None)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    found = inspect(str(tmp_path / "nothing"), {})
    assert "for pvc:// it is relative to the claim's root" in failure(found, R.MODEL_NOT_FOUND).remedy


def test_a_folder_of_a_pointer(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    found = inspect(str(folder), {})
    assert "git-lfs pointer" in failure(found, R.WEIGHTS_UNREADABLE).message


@pytest.mark.parametrize("uri", ["gs://", "hf://", "hf://../x", "s3://", "az://../x", "oci://x"])
def test_what_nobody_can_inspect(uri: str) -> None:
    found = inspect(uri, {})
    assert repr(uri) in failure(found, R.MODEL_NOT_FOUND).message


def test_the_limit_on_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made the file decides how long its header claims to be."""
    monkeypatch.setattr(inspection, "_HEADER_LIMIT", 50)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(safetensors(100))
    found = inspect(str(tmp_path), {})
    failure(found, R.MODEL_CORRUPT)
