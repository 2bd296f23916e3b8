"""`llmservice plan -f`: what the operator would say of a manifest."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_cli.app import run
from llmservice_cli.errors import ExitCode
from llmservice_cli.plan import models
from llmservice_cli.plan.models import Model, NotReached
from llmservice_operator.planner import gpus
from llmservice_runtime.contract import Failure, FailureReason

from .cli_plan_world import LLAMA_8B, config

FACTS = {
    "numAttentionHeads": 32,
    "numKeyValueHeads": 8,
    "numHiddenLayers": 32,
    "hiddenSize": 4096,
    "vocabSize": 128256,
    "intermediateSize": 14336,
    "maxPositionEmbeddings": 131072,
}
FOUR_GIB = {"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]}
LIMITED = {**FOUR_GIB, "resources": {"limits": {"memory": "16Gi"}}}
CONFIG = "the path of a config.json"
OTHER_KIND = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}}


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "pvc://models/llama", "architecture": FACTS}} | spec,
    }


def product(*names: str) -> dict[str, Any]:
    return {"products": list(names)}


def write(folder: Path, *objects: Mapping[str, Any]) -> str:
    path = folder / "llmservice.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return str(path)


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, list[str]]:
    """Exit code, JSON and lines of standard error."""
    code = run(["plan", "--offline", "-o", "json", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err.splitlines()


L4 = product("NVIDIA-L4")


@pytest.mark.parametrize(
    ("spec", "code", "verdict"),
    [
        ({"accelerator": L4, "batching": {"maxModelLen": 8192}}, 0, "Fits"),
        ({"accelerator": L4, "batching": {"maxModelLen": "auto"}}, 0, "Fits"),
        ({"accelerator": L4}, 1, "DoesNotFit"),
        ({"accelerator": {"memory": "40Gi"}, "batching": {"maxModelLen": 8192}}, 0, "Fits"),
        ({"accelerator": {"type": "cpu"}, "batching": {"maxModelLen": 8192}}, 1, "DoesNotFit"),
        ({"accelerator": {"type": "cpu"}, "batching": {"maxModelLen": 8192}, "runtime": FOUR_GIB}, 0, "Fits"),
        ({"accelerator": {"type": "cpu"}, "batching": {"maxModelLen": 8192}, "runtime": LIMITED}, 1, "DoesNotFit"),
        ({}, 3, "Unknown"),
    ],
    ids=str,
)
def test_a_manifest_is_planned(
    spec: dict[str, Any], code: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, found, _ = plan(capsys, "-f", write(tmp_path, service(**spec)))
    assert (ended, found["verdict"], found["service"], found["namespace"]) == (code, verdict, "chat", None)


@pytest.mark.parametrize(
    ("products", "chosen", "verdict", "passed"),
    [
        (("Tesla-T4", "NVIDIA-L4", "NVIDIA-L40S"), "NVIDIA-L4", "Fits", ["Tesla-T4"]),
        (("NVIDIA-L40S", "NVIDIA-L4"), "NVIDIA-L40S", "Fits", []),
        (("Tesla-P4", "Tesla-T4"), "Tesla-T4", "DoesNotFit", ["Tesla-P4"]),
    ],
)
def test_the_first_acceptable_product_that_fits(
    products: tuple[str, ...],
    chosen: str,
    verdict: str,
    passed: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = service(accelerator=product(*products), batching={"maxModelLen": 8192})
    _, found, _ = plan(capsys, "-f", write(tmp_path, manifest))
    assert (found["gpu"], found["verdict"]) == (chosen, verdict)
    assert [one["gpu"] for one in found.get("passedOver", ())] == passed


def test_options_stand_for_the_manifests_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, service(accelerator=L4, precision={"kvCache": "auto"}))
    _, plain, _ = plan(capsys, "-f", path, "--max-model-len", "8k")
    assert (plain["verdict"], plain["requestedMaxModelLen"], plain["gpu"]) == ("Fits", 8000, "NVIDIA-L4")
    _, other, _ = plan(
        capsys, "-f", path, "--max-model-len", "8k", "--kv-cache-dtype", "fp8", "-tp", "2", "--gpu", "NVIDIA-H200"
    )
    assert (other["gpus"], other["gpu"]) == (2, "NVIDIA-H200")
    assert other["kvBytesPerToken"] * 4 == plain["kvBytesPerToken"]
    assert other["notes"] == ["--kv-cache-dtype instead of spec.precision.kvCache: auto"]


@pytest.mark.parametrize(
    ("gpu", "accelerator"),
    [("MI300X", L4), ("L40S", {"type": "amd"}), ("cpu", L4), ("A10G", {"products": ["NVIDIA-L4"], "memory": "24Gi"})],
)
def test_a_gpu_beside_the_manifest_may_be_of_another_kind(
    gpu: str, accelerator: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, service(accelerator=accelerator, batching={"maxModelLen": 8192}))
    memory = ("--gpu-memory-gib", "4") if gpu == "cpu" else ()
    code, found, _ = plan(capsys, "-f", path, "--gpu", gpu, *memory)
    assert (code, found["gpu"], found["verdict"]) == (ExitCode.DONE, gpus.label(gpu) or gpu, "Fits")


def test_a_product_that_is_no_label_is_refused_with_the_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator refuses it too, unless a node has it, which a file does not know."""
    path = write(tmp_path, service(accelerator=product("H100", "A100-80"), batching={"maxModelLen": 8192}))
    code, found, told = plan(capsys, "-f", path)
    assert (code, found) == (ExitCode.BAD_INPUT, None)
    assert "chat: spec.accelerator.products[0]: H100 is no value of the node label" in told[0]
    assert "Write NVIDIA-H100-80GB-HBM3, NVIDIA-H100-PCIe" in told[0]
    assert "spec.accelerator.products[1]: A100-80 is no value of the node label" in told[1]
    assert plan(capsys, "-f", path, "--gpu", "NVIDIA-L4")[0] == ExitCode.DONE


def test_a_product_that_is_no_label_is_left_out_beside_one_that_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, service(accelerator=product("H100", "NVIDIA-L4"), batching={"maxModelLen": 8192}))
    code, found, _ = plan(capsys, "-f", path)
    assert (code, found["gpu"]) == (ExitCode.DONE, "NVIDIA-L4")
    assert found["notes"][0].startswith("spec.accelerator.products[0] is left out: H100 is no value")


def test_a_remedy_names_labels_whatever_was_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, service(batching={"maxModelLen": 65536}))
    _, found, _ = plan(capsys, "-f", path, "--gpu", "T4", "--gpu", "L4")
    named = [remedy["patch"].get("spec", {}).get("accelerator", {}).get("products") for remedy in found["remedies"]]
    assert [one for products in named for one in products or () if gpus.labels(one)] == []


def test_options_without_a_field_count_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, service(accelerator=L4, batching={"maxModelLen": 8192}))
    _, found, _ = plan(capsys, "-f", path, "--weights-gib", "10", "--gpu-memory-gib", "24")
    assert found["weightsGiB"] == pytest.approx(10, abs=0.05)
    assert (found["gpu"], found["memoryGiB"]) == ("NVIDIA-L4", 24.0)


def test_the_options_config_wins_and_a_disagreement_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, service(accelerator=L4, batching={"maxModelLen": 8192}))
    _, found, _ = plan(capsys, "-f", path, "--config", config(tmp_path, num_hidden_layers=16))
    _, plain, _ = plan(capsys, "-f", path)
    assert found["kvBytesPerToken"] * 2 == plain["kvBytesPerToken"]
    assert found["notes"] == ["spec.model.architecture says num_hidden_layers 32, the model's configuration 16"]


def test_each_service_has_its_plan_and_the_worst_code_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fits = service("small", accelerator=L4, batching={"maxModelLen": 4096})
    path = write(tmp_path, OTHER_KIND, fits, service("large", accelerator=L4), {"kind": "List", "items": [fits]})
    code, found, told = plan(capsys, "-f", path)
    assert code == ExitCode.DOES_NOT_FIT
    assert [(one["service"], one["verdict"]) for one in found] == [
        ("small", "Fits"),
        ("large", "DoesNotFit"),
        ("small", "Fits"),
    ]
    assert told == ["note: skipped Service front"]


@pytest.mark.parametrize(
    ("spec", "code", "verdict"),
    [
        ({}, 1, "DoesNotFit"),
        ({"runtime": {"env": [{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}]}}, 0, "Fits"),
        ({"contextExtension": {"method": "yarn", "factor": 4, "originalMaxPositionEmbeddings": 4096}}, 0, "Fits"),
    ],
    ids=str,
)
def test_a_length_above_the_models_needs_an_extension(
    spec: Mapping[str, Any], code: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = service(accelerator=L4, batching={"maxModelLen": 8192}, model={"uri": "pvc://models/llama"}, **spec)
    given = config(tmp_path, max_position_embeddings=4096)
    ended, found, _ = plan(capsys, "-f", write(tmp_path, wanted), "--config", given)
    assert (ended, found["verdict"]) == (code, verdict)
    assert [one["patch"] for one in found["remedies"]] == ([{"spec": {"batching": {"maxModelLen": 4096}}}] * code)


def test_one_bad_service_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = service("bad", precision={"dtype": "banana"}, batching={"maxNumSeqs": 0})
    good = service("good", accelerator=L4, batching={"maxModelLen": 4096})
    path = write(tmp_path, bad, good)
    code, found, told = plan(capsys, "-f", path)
    assert code == ExitCode.BAD_INPUT
    assert [(one["service"], one["verdict"]) for one in found] == [("good", "Fits")]
    assert len(told) == 2
    assert told[0].startswith(f"error: {path}, document 1: bad: spec.batching.maxNumSeqs: must be greater than or")
    assert told[1].startswith(f"error: {path}, document 1: bad: spec.precision.dtype: 'banana' is not supported.")


@pytest.mark.parametrize(
    ("manifest", "words", "said"),
    [
        (service(accelerator=L4, parallelism={"tensorParallelSize": 3}), (), "3 ranks cannot share 32 attention heads"),
        (service(accelerator=L4), ("-tp", "3"), "spec.parallelism.tensorParallelSize: 3 ranks cannot share"),
        (service(accelerator=L4), ("--quantization", "gguf"), "spec.precision.quantization: Input should be 'awq'"),
        (
            service(accelerator=product("Tesla-T4"), precision={"dtype": "bfloat16"}),
            (),
            "spec.precision.dtype: precision.dtype bfloat16",
        ),
        (service(precision={"dtype": "bfloat16"}), ("--gpu", "T4"), "T4 has 7.5"),
        (service(attention={"backend": "FLASHINFER"}), ("--gpu", "MI300X"), "accelerator.type amd"),
        (
            service(model={"uri": "pvc://models/llama"}),
            ("--config", CONFIG, "-pp", "33"),
            "chat: spec.parallelism.pipelineParallelSize: 33 stages cannot share 32 layers.",
        ),
        (service(model={"uri": "http://x"}), (), "spec.model.uri"),
        ({**service(), "metadata": {}}, (), "metadata.name: is required."),
        ({**service(), "apiVersion": "llmservice.dev/v9"}, (), "apiVersion: llmservice.dev/v9 is none"),
        ({**service(), "spec": "all"}, ("-tp", "2"), "spec: must be of type object"),
        (OTHER_KIND, (), "it holds no LLMService."),
    ],
)
def test_what_the_operator_would_refuse_is_bad_input(
    manifest: dict[str, Any],
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = tuple(config(tmp_path) if word == CONFIG else word for word in words)
    code, found, told = plan(capsys, "-f", write(tmp_path, manifest), *words)
    assert (code, found) == (ExitCode.BAD_INPUT, None)
    errors = [line for line in told if not line.startswith("note:")]
    assert all(line.startswith("error: ") for line in errors)
    assert said in errors[0]


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
"""Ten lines that stand for a billion values."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory."),
        ("a: [", "is no YAML: while parsing"),
        ("- 1", "is no Kubernetes object."),
        ("", "it holds no LLMService."),
        (ALIASES, "has more than 200,000 values, aliases included."),
    ],
)
def test_a_file_that_is_no_manifest(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "llmservice.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    code, found, told = plan(capsys, "-f", str(path))
    assert (code, found, len(told)) == (ExitCode.BAD_INPUT, None, 1)
    assert said in told[0]


def test_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = yaml.safe_dump(service(accelerator=L4, batching={"maxModelLen": 4096}))
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert plan(capsys, "-f", "-")[0] == ExitCode.DONE


def test_a_remedy_merged_into_the_manifest_makes_it_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = service(accelerator=L4, batching={"maxNumSeqs": 256})
    code, found, _ = plan(capsys, "-f", write(tmp_path, manifest))
    assert (code, len(found["remedies"])) == (ExitCode.DOES_NOT_FIT, 3)
    for remedy in found["remedies"]:
        changed = merged(manifest, remedy["patch"])
        code, found, _ = plan(capsys, "-f", write(tmp_path, changed))
        assert (code, found["verdict"]) == (ExitCode.DONE, remedy["verdict"])
        assert found["kvCacheTokens"] == remedy["kvCacheTokens"]


def merged(one: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict) or not isinstance(one, dict):
        return patch
    return {**one, **{key: merged(one.get(key), value) for key, value in patch.items()}}


HUB = service(model={"uri": "hf://org/llama"}, accelerator=L4, batching={"maxModelLen": 8192})


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (HUB, "hf://org/llama is not read with --offline. Give its config.json with --config."),
        (
            service(model={"uri": "pvc://models/llama"}, accelerator=L4),
            "pvc://models/llama is in the cluster and cannot be read from here.",
        ),
    ],
)
def test_a_model_that_is_not_read_leaves_the_plan_unknown(
    manifest: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, told = plan(capsys, "-f", write(tmp_path, manifest))
    assert (code, found["verdict"]) == (ExitCode.UNKNOWN, "Unknown")
    assert found["reason"].startswith(said)
    assert "num_hidden_layers" in found["missing"]
    assert told[0].startswith("warning: chat: Unknown: ")


def test_a_model_of_the_hub_is_looked_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def hub(uri: str) -> Model:
        asked.append(uri)
        return models.from_document(LLAMA_8B, "--model")

    monkeypatch.setattr(models, "from_uri", hub)
    path = write(tmp_path, HUB, {**HUB, "metadata": {"name": "other"}})
    assert run(["plan", "-f", path, "-o", "json"]) == ExitCode.DONE
    assert [one["verdict"] for one in json.loads(capsys.readouterr().out)] == ["Fits", "Fits"]
    assert asked == ["hf://org/llama"]


def test_a_hub_that_does_not_answer_is_the_reason_of_an_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub(uri: str) -> Model:
        raise NotReached(Failure(FailureReason.MODEL_DOWNLOAD_FAILED, "The hub does not answer.", "Try again."))

    monkeypatch.setattr(models, "from_uri", hub)
    path = write(tmp_path, HUB)
    assert run(["plan", "-f", path, "-o", "json"]) == ExitCode.UNKNOWN
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "Unknown"
    assert said["reason"].startswith("hf://org/llama cannot be read: The hub does not answer. Try again.")
    assert run(["plan", "--model", "hf://org/llama", "--gpu", "L4"]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err == "error: --model: hf://org/llama: The hub does not answer. Try again.\n"
