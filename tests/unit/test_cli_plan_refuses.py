"""`llmservice plan -f` refuses what the API server refuses, with and without a GPU named beside the manifest.

The bad manifests are those that tests/contract/ has refused by a real API server, at the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_cli.admission.check import problems
from llmservice_cli.app import run
from llmservice_cli.errors import ExitCode
from llmservice_operator.api.constants import API_VERSION, KIND

from tests.contract.manifests import BAD, GOOD, HUB, Case, manifest
from tests.support.documents import manifests

# A rule about a change needs the object as it was, which a file does not hold.
WRITTEN = [bad for bad in BAD if not bad.before]
DOCUMENTED = manifests()


def plan(folder: Path, written: Mapping[str, Any], *words: str) -> int:
    path = folder / "llmservice.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, **written}), encoding="utf-8")
    return run(["plan", "--offline", "-f", str(path), *words])


def place(bad: Case) -> str:
    """The field; of an unknown one the API server names it in its message."""
    return bad.field or re.findall(r'"([^"]+)"', bad.says[0])[0]


@pytest.mark.parametrize("words", [(), ("--gpu", "NVIDIA-L4")], ids=["alone", "with --gpu"])
@pytest.mark.parametrize("bad", WRITTEN, ids=[bad.id for bad in WRITTEN])
def test_what_the_api_server_refuses_is_refused(
    bad: Case, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = plan(tmp_path, manifest(bad.name, bad.change), *words)
    said = capsys.readouterr().err.splitlines()
    assert code == ExitCode.BAD_INPUT, said
    assert said
    assert all(f": {place(bad)}: " in line for line in said), "one wrong thing, one field"


@pytest.mark.parametrize("good", GOOD, ids=[good.id for good in GOOD])
def test_what_the_api_server_takes_is_taken(good: Case) -> None:
    assert problems({"apiVersion": API_VERSION, "kind": KIND, **manifest(good.name, good.change)}) == ()


@pytest.mark.parametrize("written", DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_what_the_documentation_shows_is_taken(written: Mapping[str, Any]) -> None:
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
def test_metadata_that_kubernetes_refuses(
    metadata: Mapping[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = plan(tmp_path, {**manifest("good", {}), "metadata": metadata}, "--gpu", "NVIDIA-L4")
    assert code == ExitCode.BAD_INPUT
    assert f"{field}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"accelerator": {"products": "NVIDIA-L4"}}, id="a product that is no list"),
        pytest.param({"accelerator": {"type": "cpu", "products": ["NVIDIA-L4"]}}, id="a CPU with a product"),
        pytest.param({"batching.maxNumSeqs": 0}, id="a value that an option replaces"),
    ],
)
def test_options_mend_nothing(change: Mapping[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, manifest("good", change), "--gpu", "L4", "--max-num-seqs", "8") == ExitCode.BAD_INPUT
    assert capsys.readouterr().out == ""


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
    found = problems({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "chat"}, "spec": spec})
    assert (found == ()) == is_taken, found
