"""`llmservice plan -f`: what the operator would say of a manifest."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from llmservice_cli import models
from llmservice_cli.errors import ExitCode
from llmservice_cli.models import Model, NotReached
from llmservice_planner import gpus
from llmservice_runtime.contract import Failure, FailureReason

from tests.unit.cli_world import LLAMA_8B, OTHER_KIND, Command, Json, manifest

DONE, BAD_INPUT = ExitCode.DONE, ExitCode.BAD_INPUT
DOES_NOT_FIT, UNKNOWN = ExitCode.DOES_NOT_FIT, ExitCode.UNKNOWN
FOUR_GIB = {"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]}
LIMITED = {**FOUR_GIB, "resources": {"limits": {"memory": "16Gi"}}}
LONG = {"env": [{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}]}
CPU, SHORT, POD_MODEL = {"type": "cpu"}, {"maxModelLen": 8192}, {"uri": "pvc://models/llama"}


def product(*names: str) -> Json:
    return {"products": list(names)}


L4 = product("NVIDIA-L4")


class Plan:
    """`plan -f` of manifests, without a network."""

    def __init__(self, llmservice: Command) -> None:
        self.llmservice = llmservice

    def __call__(self, *words: str, of: Mapping[str, Any] | list[Any]) -> tuple[int, Any, list[str]]:
        """Exit code, JSON and lines of standard error."""
        path = self.llmservice.manifest(*(of if isinstance(of, list) else [of]))
        ran = self.llmservice("plan", "--offline", "-o", "json", "-f", path, *words)
        return ran.code, ran.json if ran.out else None, ran.errors


@pytest.fixture
def plan(llmservice: Command) -> Plan:
    return Plan(llmservice)


@pytest.mark.parametrize(
    ("spec", "code", "verdict"),
    [
        ({"accelerator": L4, "batching": SHORT}, 0, "Fits"),
        ({"accelerator": L4, "batching": {"maxModelLen": "auto"}}, 0, "Fits"),
        ({"accelerator": L4}, 1, "DoesNotFit"),
        ({"accelerator": {"memory": "40Gi"}, "batching": SHORT}, 0, "Fits"),
        ({"accelerator": CPU, "batching": SHORT}, 1, "DoesNotFit"),
        ({"accelerator": CPU, "batching": SHORT, "runtime": FOUR_GIB}, 0, "Fits"),
        ({"accelerator": CPU, "batching": SHORT, "runtime": LIMITED}, 1, "DoesNotFit"),
        ({}, 3, "Unknown"),
    ],
    ids=str,
)
def test_a_manifest_is_planned(spec: Json, code: int, verdict: str, plan: Plan) -> None:
    ended, found, _ = plan(of=manifest(**spec))
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
    products: tuple[str, ...], chosen: str, verdict: str, passed: list[str], plan: Plan
) -> None:
    _, found, _ = plan(of=manifest(accelerator=product(*products), batching=SHORT))
    assert (found["gpu"], found["verdict"]) == (chosen, verdict)
    assert [one["gpu"] for one in found.get("passedOver", ())] == passed


def test_options_stand_for_the_manifests_values(plan: Plan) -> None:
    given, short = manifest(accelerator=L4, precision={"kvCache": "auto"}), ("--max-model-len", "8k")
    _, plain, _ = plan(*short, of=given)
    assert (plain["verdict"], plain["requestedMaxModelLen"], plain["gpu"]) == ("Fits", 8000, "NVIDIA-L4")
    _, other, _ = plan(*short, "--kv-cache-dtype", "fp8", "-tp", "2", "--gpu", "NVIDIA-H200", of=given)
    assert (other["gpus"], other["gpu"]) == (2, "NVIDIA-H200")
    assert other["kvBytesPerToken"] * 4 == plain["kvBytesPerToken"]
    assert other["notes"] == ["--kv-cache-dtype instead of spec.precision.kvCache: auto"]
    # Options without a field count, too.
    _, other, _ = plan(*short, "--weights-gib", "10", "--gpu-memory-gib", "24", of=given)
    assert other["weightsGiB"] == pytest.approx(10, abs=0.05)
    assert (other["gpu"], other["memoryGiB"]) == ("NVIDIA-L4", 24.0)


@pytest.mark.parametrize(
    ("gpu", "accelerator"),
    [("MI300X", L4), ("L40S", {"type": "amd"}), ("cpu", L4), ("A10G", {"products": ["NVIDIA-L4"], "memory": "24Gi"})],
)
def test_a_gpu_beside_the_manifest_may_be_of_another_kind(gpu: str, accelerator: Json, plan: Plan) -> None:
    memory = ("--gpu-memory-gib", "4") if gpu == "cpu" else ()
    code, found, _ = plan("--gpu", gpu, *memory, of=manifest(accelerator=accelerator, batching=SHORT))
    assert (code, found["gpu"], found["verdict"]) == (DONE, gpus.label(gpu) or gpu, "Fits")


@pytest.mark.parametrize(
    "products", [["NVIDIA-H100-80GB-HBM3"], ["NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"], None], ids=["card", "slice", "any"]
)
def test_a_resource_of_slices_is_planned_by_their_size(products: list[str] | None, plan: Plan) -> None:
    slices: Json = {"resourceName": "nvidia.com/mig-3g.40gb", **({"products": products} if products else {})}
    _, found, _ = plan(of=manifest(accelerator=slices, batching=SHORT))
    assert (found["memoryGiB"], found["verdict"]) == (39.25, "Fits")
    large = manifest(accelerator=slices, batching={"maxModelLen": 131072, "maxNumSeqs": 512})
    assert not [one for one in plan(of=large)[1]["remedies"] if "tensorParallel" in str(one) or "take " in str(one)]


def test_a_product_that_is_no_label_is_refused_unless_another_is_one(plan: Plan) -> None:
    """The operator refuses it too, unless a node has it, which a file does not know."""
    given = manifest(accelerator=product("H100", "A100-80"), batching=SHORT)
    code, found, errors = plan(of=given)
    assert (code, found) == (BAD_INPUT, None)
    assert "chat: spec.accelerator.products[0]: H100 is no value of the node label" in errors[0]
    assert "Write NVIDIA-H100-80GB-HBM3, NVIDIA-H100-PCIe" in errors[0]
    assert "spec.accelerator.products[1]: A100-80 is no value of the node label" in errors[1]
    assert plan("--gpu", "NVIDIA-L4", of=given)[0] == DONE
    code, found, _ = plan(of=manifest(accelerator=product("H100", "NVIDIA-L4"), batching=SHORT))
    assert (code, found["gpu"]) == (DONE, "NVIDIA-L4")
    assert found["notes"][0].startswith("spec.accelerator.products[0] is left out: H100 is no value")


def test_a_remedy_names_labels_whatever_was_typed(plan: Plan) -> None:
    _, found, _ = plan("--gpu", "T4", "--gpu", "L4", of=manifest(batching={"maxModelLen": 65536}))
    named = [remedy["patch"].get("spec", {}).get("accelerator", {}).get("products") for remedy in found["remedies"]]
    assert [one for products in named for one in products or () if gpus.labels(one)] == []


def test_facts_of_the_spec_win_over_a_config_as_in_the_operator(plan: Plan, llmservice: Command) -> None:
    given = manifest(accelerator=L4, batching=SHORT)
    config = llmservice.config(num_hidden_layers=16)
    _, found, _ = plan("--config", config, of=given)
    _, plain, _ = plan(of=given)
    assert found["kvBytesPerToken"] == plain["kvBytesPerToken"]
    assert found["notes"] == [
        "spec.model.architecture says num_hidden_layers 32, the model's configuration 16: the spec's is planned, as "
        "the operator does"
    ]
    given["spec"]["model"] = {"uri": given["spec"]["model"]["uri"], "architecture": {"modelType": "llama"}}
    unknown = llmservice.config(model_type="nobody_knows", architectures=None)
    assert plan("--config", unknown, of=given)[1]["verdict"] == "Fits", "what Unknown advises"


def test_each_service_has_its_plan_and_the_worst_code_counts(plan: Plan) -> None:
    fits, large = manifest("small", accelerator=L4, batching=SHORT), manifest("large", accelerator=L4)
    code, found, errors = plan(of=[OTHER_KIND, fits, large, {"kind": "List", "items": [fits]}])
    assert (code, errors) == (DOES_NOT_FIT, ["note: skipped Service front"])
    verdicts = [(one["service"], one["verdict"]) for one in found]
    assert verdicts == [("small", "Fits"), ("large", "DoesNotFit"), ("small", "Fits")]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({}, 1),
        ({"runtime": LONG}, 0),
        ({"contextExtension": {"method": "yarn", "factor": 4, "originalMaxPositionEmbeddings": 4096}}, 0),
    ],
    ids=str,
)
def test_a_length_above_the_models_needs_an_extension(
    spec: Mapping[str, Any], code: int, plan: Plan, llmservice: Command
) -> None:
    config = llmservice.config(max_position_embeddings=4096)
    given = manifest(accelerator=L4, batching=SHORT, model=POD_MODEL, **spec)
    ended, found, _ = plan("--config", config, of=given)
    assert (ended, found["verdict"]) == (code, "DoesNotFit" if code else "Fits")
    assert [one["patch"] for one in found["remedies"]] == ([{"spec": {"batching": {"maxModelLen": 4096}}}] * code)


def test_one_bad_service_does_not_hide_the_others(plan: Plan) -> None:
    bad = manifest("bad", precision={"dtype": "banana"}, batching={"maxNumSeqs": 0})
    code, found, errors = plan(of=[bad, manifest("good", accelerator=L4, batching=SHORT)])
    assert (code, [(one["service"], one["verdict"]) for one in found]) == (BAD_INPUT, [("good", "Fits")])
    first, second = (error.partition(", document 1: ")[2] for error in errors)
    assert first.startswith("bad: spec.batching.maxNumSeqs: must be greater than or")
    assert second.startswith("bad: spec.precision.dtype: 'banana' is not supported.")


T4_BFLOAT16 = manifest(accelerator=product("Tesla-T4"), precision={"dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("given", "words", "error"),
    [
        (manifest(accelerator=L4, parallelism={"tensorParallelSize": 3}), "", "3 ranks cannot share 32 attention"),
        (manifest(accelerator=L4), "-tp 3", "spec.parallelism.tensorParallelSize: 3 ranks cannot share"),
        (manifest(accelerator=L4), "--quantization gguf", "--quantization: 'gguf' is not supported. Write one of awq,"),
        (T4_BFLOAT16, "", "spec.precision.dtype: precision.dtype bfloat16"),
        (manifest(precision={"dtype": "bfloat16"}), "--gpu T4", "T4 has 7.5"),
        (manifest(attention={"backend": "FLASHINFER"}), "--gpu MI300X", "accelerator.type amd"),
        (manifest(model=POD_MODEL), "-pp 33 --config {}", "chat: spec.parallelism.pipelineParallelSize: 33 stages"),
        (manifest(model={"uri": "http://x"}), "", "spec.model.uri"),
        (manifest() | {"metadata": {}}, "", "metadata.name: is required."),
        (manifest() | {"apiVersion": "llmservice.dev/v9"}, "", "apiVersion: llmservice.dev/v9 is none"),
        (manifest() | {"spec": "all"}, "-tp 2", "spec: must be of type object"),
        (OTHER_KIND, "", "it holds no LLMService."),
    ],
)
def test_what_the_operator_would_refuse_is_bad_input(
    given: Json, words: str, error: str, plan: Plan, llmservice: Command
) -> None:
    code, found, lines = plan(*words.format(llmservice.config()).split(), of=given)
    assert (code, found) == (BAD_INPUT, None)
    errors = [line for line in lines if not line.startswith("note:")]
    assert all(line.startswith("error: ") for line in errors)
    assert error in errors[0]


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
"""Ten lines that stand for a billion values."""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "cannot be read: No such file or directory."),
        ("a: [", "is no YAML: while parsing"),
        ("- 1", "is no Kubernetes object."),
        ("", "it holds no LLMService."),
        (ALIASES, "has more than 400,000 keys and values, aliases included."),
    ],
)
def test_a_file_that_is_no_manifest(text: str | None, error: str, llmservice: Command) -> None:
    path = "/no/such/file" if text is None else llmservice.text("llmservice.yaml", text)
    ran = llmservice("plan", "--offline", "-f", path)
    assert (ran.code, ran.out, len(ran.errors), error in ran.err) == (BAD_INPUT, "", 1, True)


def test_from_standard_input(monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> None:
    text = yaml.safe_dump(manifest(accelerator=L4, batching=SHORT))
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert llmservice("plan", "--offline", "-f", "-").code == DONE


def test_a_remedy_merged_into_the_manifest_makes_it_fit(plan: Plan) -> None:
    given = manifest(accelerator=L4, batching={"maxNumSeqs": 256})
    code, found, _ = plan(of=given)
    assert (code, len(found["remedies"])) == (DOES_NOT_FIT, 3)
    for remedy in found["remedies"]:
        code, then, _ = plan(of=merged(given, remedy["patch"]))
        assert (code, then["verdict"], then["kvCacheTokens"]) == (DONE, remedy["verdict"], remedy["kvCacheTokens"])


def merged(one: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict) or not isinstance(one, dict):
        return patch
    return {**one, **{key: merged(one.get(key), value) for key, value in patch.items()}}


HUB = manifest(model={"uri": "hf://org/llama"}, accelerator=L4, batching=SHORT)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (HUB, "hf://org/llama is not read with --offline. Give its config.json with --config."),
        (manifest(model=POD_MODEL, accelerator=L4), "pvc://models/llama is in the cluster and cannot be read from"),
    ],
)
def test_a_model_that_is_not_read_leaves_the_plan_unknown(given: Json, reason: str, plan: Plan) -> None:
    code, found, errors = plan(of=given)
    assert (code, found["verdict"]) == (UNKNOWN, "Unknown")
    assert found["reason"].startswith(reason)
    assert "num_hidden_layers" in found["missing"]
    assert errors[0].startswith("warning: chat: Unknown: ")


def test_a_model_of_the_hub_is_read_once(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def hub(uri: str, *, is_draft: bool) -> Model:
        read.append(uri)
        return models.from_document(LLAMA_8B, "--model")

    monkeypatch.setattr(models, "from_uri", hub)
    path = llmservice.manifest(HUB, {**HUB, "metadata": {"name": "other"}})
    ran = llmservice("plan", "-f", path, "-o", "json")
    assert ([one["verdict"] for one in ran.json], read) == (["Fits", "Fits"], ["hf://org/llama"])


def test_a_hub_that_does_not_answer_is_the_reason_of_an_unknown(
    llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub(uri: str, *, is_draft: bool = False) -> Model:
        raise NotReached(Failure(FailureReason.MODEL_DOWNLOAD_FAILED, "The hub does not answer.", "Try again."))

    monkeypatch.setattr(models, "from_uri", hub)
    ran = llmservice("plan", "-f", llmservice.manifest(HUB), "-o", "json")
    assert (ran.code, ran.json["verdict"]) == (UNKNOWN, "Unknown")
    assert ran.json["reason"].startswith("hf://org/llama cannot be read: The hub does not answer. Try again.")
    ran = llmservice("plan", "--model", "hf://org/llama", "--gpu", "L4")
    error = "error: --model: hf://org/llama: The hub does not answer. Try again.\n"
    assert (ran.code, ran.err) == (BAD_INPUT, error)
