"""`llmservice plan -f` refuses what the API server refuses, with and without a GPU named beside the manifest.

The bad manifests are those that tests/contract/ has refused by a real API server, at the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from llmservice_api.constants import API_VERSION, KIND
from llmservice_cli.admission.check import problems
from llmservice_cli.errors import ExitCode

from tests.contract.manifests import BAD, GOOD, HUB, Case, manifest
from tests.support.documents import manifests
from tests.unit.cli_world import Command, Json, Ran

# A rule about a change needs the object as it was, which a file does not hold.
WRITTEN = [bad for bad in BAD if not bad.before]


def whole(written: Mapping[str, Any]) -> Json:
    return {"apiVersion": API_VERSION, "kind": KIND, **written}


TAKEN = {**manifests(), **{good.id: whole(manifest(good.name, good.change)) for good in GOOD}}
"""Of the documentation, and those that the API server takes."""


def plan(llmservice: Command, written: Mapping[str, Any], *words: str) -> Ran:
    return llmservice("plan", "--offline", "-f", llmservice.manifest(whole(written)), *words)


def place(bad: Case) -> str:
    """The field; of an unknown one the API server names it in its message."""
    return bad.field or re.findall(r'"([^"]+)"', bad.says[0])[0]


# What is checked does not depend on the GPU: with one, the first row of each part of the spec.
WITH_GPU = {".".join(place(bad).split(".")[:2]): bad for bad in reversed(WRITTEN)}
ROWS = [*((bad, ()) for bad in WRITTEN), *((bad, ("--gpu", "NVIDIA-L4")) for bad in WITH_GPU.values())]


@pytest.mark.parametrize(("bad", "words"), ROWS, ids=[" ".join((bad.id, *words)) for bad, words in ROWS])
def test_what_the_api_server_refuses_is_refused(bad: Case, words: tuple[str, ...], llmservice: Command) -> None:
    ran = plan(llmservice, manifest(bad.name, bad.change), *words)
    assert (ran.code, ran.errors != []) == (ExitCode.BAD_INPUT, True)
    assert all(f": {place(bad)}: " in line for line in ran.errors), "one wrong thing, one field"


@pytest.mark.parametrize("written", TAKEN.values(), ids=TAKEN.keys())
def test_what_the_api_server_and_the_documentation_accept_is_accepted(written: Mapping[str, Any]) -> None:
    assert problems(written) == ()


METADATA: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "an underscore": ({"name": "my_model"}, "metadata.name"),
    "a capital letter": ({"name": "Chat"}, "metadata.name"),
    "a number": ({"name": 7}, "metadata.name"),
    "no name": ({"labels": {"a": "b"}}, "metadata.name"),
    "a namespace with a dot": ({"name": "chat", "namespace": "a.b"}, "metadata.namespace"),
    "a label with a space": ({"name": "chat", "labels": {"team": "a b"}}, "metadata.labels"),
    "a label that is a number": ({"name": "chat", "labels": {"team": 7}}, "metadata.labels"),
    "an annotation that is a number": ({"name": "chat", "annotations": {"cost": 7}}, "metadata.annotations"),
    "a field that nobody knows": ({"name": "chat", "lables": {}}, "metadata.lables"),
}


@pytest.mark.parametrize(("metadata", "field"), METADATA.values(), ids=METADATA)
def test_metadata_that_kubernetes_refuses(metadata: Mapping[str, Any], field: str, llmservice: Command) -> None:
    ran = plan(llmservice, {**manifest("good", {}), "metadata": metadata}, "--gpu", "NVIDIA-L4")
    assert (ran.code, f"{field}: " in ran.err) == (ExitCode.BAD_INPUT, True)


@pytest.mark.parametrize(
    "change",
    [
        {"accelerator": {"products": "NVIDIA-L4"}},
        {"accelerator": {"type": "cpu", "products": ["NVIDIA-L4"]}},
        {"batching.maxNumSeqs": 0},
    ],
    ids=str,
)
def test_options_correct_nothing(change: Mapping[str, Any], llmservice: Command) -> None:
    ran = plan(llmservice, manifest("good", change), "--gpu", "L4", "--max-num-seqs", "8")
    assert (ran.code, ran.out) == (ExitCode.BAD_INPUT, "")


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        pytest.param("batching: {maxNumSeqs: 2.0}", True, id="JSON has one kind of number"),
        pytest.param("batching: {maxNumSeqs: 2.5}", False, id="a fraction where none may be"),
        pytest.param("batching: {maxNumSeqs: null}", True, id="null is not given"),
        pytest.param("runtime: {env: [null]}", False, id="null in a list"),
        pytest.param("accelerator: {gpuMemoryUtilization: .inf}", False, id="infinity"),
        pytest.param("parallelism: {tensorParallelSize: true}", False, id="a switch is no number"),
        pytest.param("generation: {seed: 99999999999999999999}", False, id="more than 64 bits"),
        pytest.param("podTemplate: {metadata: {annotations: {since: 2026-01-01}}}", True, id="a date is text"),
    ],
)
def test_yaml_is_read_as_kubectl_reads_it(text: str, is_taken: bool) -> None:
    spec = {"model": {"uri": HUB}, **yaml.safe_load(text)}
    found = problems(whole({"metadata": {"name": "chat"}, "spec": spec}))
    assert (found == ()) == is_taken, found
