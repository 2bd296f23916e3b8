"""`llmservice init`: a manifest that the operator accepts, and the Role of the activator where one is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_api.service import LLMService
from llmservice_cli.init import ACTIVATOR

from tests.unit.cli_world import Command

MODEL = ("--model", "hf://org/model", "--offline")
ZERO = ("--min-replicas", "0")
KEYS = ("--api-key-secret", "keys/api-key")

MADE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "the smallest": ((), {}),
    "to zero": (ZERO, {"scaling": {"autoscaling": {"minReplicas": 0, "maxReplicas": 1}}}),
    "from two": (("--min-replicas", "2"), {"scaling": {"autoscaling": {"minReplicas": 2, "maxReplicas": 2}}}),
    "to four": (("--max-replicas", "4"), {"scaling": {"autoscaling": {"maxReplicas": 4}}}),
    "both": ((*ZERO, "--max-replicas", "4"), {"scaling": {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}}),
    "keys": (KEYS, {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}),
    "replicas": (("--replicas", "3"), {"scaling": {"replicas": 3}}),
    "on CPUs": (("--cpu",), {"accelerator": {"type": "cpu"}}),
    "GPUs": (("--gpu", "L4,L40S"), {"accelerator": {"products": ["NVIDIA-L4", "NVIDIA-L40S"]}}),
    "AMD": (("--gpu", "MI300X"), {"accelerator": {"type": "amd", "products": ["AMD_Instinct_MI300X_OAM"]}}),
    "a length": (("--max-model-len", "16K"), {"batching": {"maxModelLen": 16384}}),
    "an open length": (("--max-model-len", "auto"), {"batching": {"maxModelLen": "auto"}}),
    "fp8": (("--quantization", "fp8"), {"precision": {"quantization": "fp8"}}),
    "int4": (("--quantization", "awq"), {"precision": {"quantization": "awq"}}),
    "8 bits of a method": (
        ("--quantization", "gptq int8"),
        {"precision": {"quantization": "gptq", "weights": "int8"}},
    ),
}


@pytest.mark.parametrize(("words", "spec"), MADE.values(), ids=MADE.keys())
def test_the_manifest_has_what_was_asked_for(words: tuple[str, ...], spec: dict[str, Any], llmservice: Command) -> None:
    ran = llmservice("init", "chat", *MODEL, *words)
    assert (ran.code, ran.err) == (0, "")
    (made,) = yaml.safe_load_all(ran.out)
    assert made["metadata"] == {"name": "chat"}
    assert made["spec"] == {"model": {"uri": "hf://org/model"}} | spec
    metadata = made["metadata"] | {"namespace": "team", "uid": "u", "generation": 1}
    assert LLMService.from_object(made | {"metadata": metadata}).spec.model.uri == "hf://org/model"


@pytest.mark.parametrize("account", [ACTIVATOR, "scaling/mine"])
def test_keys_of_a_service_that_may_be_at_zero_are_granted_to_the_activator(account: str, llmservice: Command) -> None:
    given = () if account == ACTIVATOR else ("--activator", account)
    ran = llmservice("init", "chat", *MODEL, *ZERO, *KEYS, "-n", "team", *given)
    made, role, binding = yaml.safe_load_all(ran.out)
    assert {each["metadata"]["namespace"] for each in (made, role, binding)} == {"team"}
    assert role["kind"] == "Role"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"], "verbs": ["get"]}]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    namespace, name = account.split("/")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]


MODEL_FIELDS = {
    ("--cache-size", "30Gi"): {"cache": {"size": "30Gi"}},
    ("--hf-token-secret", "hub/token"): {"hfTokenSecretRef": {"name": "hub", "key": "token"}},
}


@pytest.mark.parametrize(("words", "fields"), MODEL_FIELDS.items(), ids=lambda each: str(each)[:20])
def test_fields_of_the_model(words: tuple[str, ...], fields: dict[str, Any], llmservice: Command) -> None:
    made = yaml.safe_load(llmservice("init", "chat", *MODEL, *words).out)
    assert made["spec"] == {"model": {"uri": "hf://org/model"} | fields}


def test_a_name_of_the_hub_is_a_uri_and_json_has_the_same(llmservice: Command) -> None:
    ran = llmservice("init", "chat", "--model", "org/model", "--offline", *ZERO, *KEYS, "-n", "team", "-o", "json")
    manifest, role, _ = ran.json["items"]
    assert (manifest["spec"]["model"]["uri"], role["kind"]) == ("hf://org/model", "Role")
    assert llmservice("init", "chat", *MODEL, "-o", "json").json["kind"] == "LLMService"


def test_a_file_is_written_once(llmservice: Command, tmp_path: Path) -> None:
    words = ("init", "chat", *MODEL, "--out", str(tmp_path / "chat.yaml"))
    assert llmservice(*words).out == ""
    assert yaml.safe_load((tmp_path / "chat.yaml").read_text())["kind"] == "LLMService"
    ran = llmservice(*words)
    assert (ran.code, "is there already. Name another file, or add --force." in ran.err) == (2, True)
    assert llmservice(*words, "--force").code == 0
    ran = llmservice("init", "chat", *MODEL, "--out", str(tmp_path / "none" / "chat.yaml"))
    assert (ran.code, "cannot be written" in ran.err) == (2, True)


def test_keys_of_a_service_that_keeps_a_replica_are_granted_to_nobody(llmservice: Command) -> None:
    for words in ((), ("--min-replicas", "1")):
        assert len(list(yaml.safe_load_all(llmservice("init", "chat", *MODEL, *KEYS, "-n", "team", *words).out))) == 1


REFUSED = {
    "no model": (("chat",), "--model"),
    "a name with capitals": (("Chat", *MODEL), "name"),
    "an unknown place": (("chat", "--model", "ftp://x"), "uri"),
    "two kinds of replicas": (("chat", *MODEL, "--replicas", "1", "--min-replicas", "0"), "--replicas is for a fixed"),
    "CPUs and a GPU": (("chat", *MODEL, "--cpu", "--gpu", "L4"), "--cpu and --gpu exclude each other"),
    "a GPU nobody knows": (("chat", *MODEL, "--gpu", "Z80"), "--gpu: 'Z80' is no GPU of the catalogue"),
    "GPUs of two vendors": (("chat", *MODEL, "--gpu", "L4,MI300X"), "--gpu: they are of several vendors"),
    "a length that is none": (("chat", *MODEL, "--max-model-len", "long"), "--max-model-len: 'long' is no"),
    "a quantization that is none": (("chat", *MODEL, "--quantization", "zip"), "--quantization: 'zip' is no"),
    "a size that is none": (("chat", *MODEL, "--cache-size", "big"), "spec.model.cache.size"),
    "no name": (MODEL, "NAME must be given"),
    "nothing": ((), "NAME and --model must be given"),
    "bounds that cross": (("chat", *MODEL, "--min-replicas", "3", "--max-replicas", "2"), "maxReplicas"),
    "fewer than none": (("chat", *MODEL, "--min-replicas", "-1"), "minReplicas"),
    "a Secret without a key": (("chat", *MODEL, "--api-key-secret", "keys"), "two names with a slash between"),
    "a Role without a namespace": (("chat", *MODEL, *ZERO, *KEYS), "give it with -n"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_operator_would_refuse_is_not_printed(
    words: tuple[str, ...], message: str, llmservice: Command
) -> None:
    ran = llmservice("init", *words)
    assert (ran.code, ran.out, message in ran.err) == (2, "", True), ran
