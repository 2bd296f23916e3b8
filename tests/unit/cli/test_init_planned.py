"""`llmservice init` with a model and a cluster that can be read: what is chosen, and what is said of it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.admission.check import problems
from llmservice_cli.errors import CliError
from llmservice_cli.init.choice import Choice
from llmservice_cli.init.command import Hint, hints, proposed_name, text
from llmservice_cli.plan.questions import patched, write

from tests.support.hub import Hub, Repo, serving
from tests.unit.api_server import ApiServer
from tests.unit.cli.nodes_world import L4, L40S, T4, node, put
from tests.unit.cli_world import LLAMA_8B, Command, Json

WORDS = ("init", "chat", "--model", "org/llama")


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {"org/llama": Repo({"config.json": json.dumps(LLAMA_8B).encode()})}
    with serving(Hub(repos)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


CHOSEN: dict[str, tuple[tuple[Json, ...], tuple[str, ...], Mapping[str, Any], str]] = {
    "the smallest that takes the model's own length": (
        (node("a", T4), node("b", L4), node("c", L40S)),
        (),
        {"accelerator": {"products": [L40S]}},
        "The cluster has room for 4 such replicas now.",
    ),
    "the smallest that takes what is asked for": (
        (node("a", T4), node("b", L4), node("c", L40S)),
        ("--max-model-len", "8K"),
        {"batching": {"maxModelLen": 8192}, "accelerator": {"products": [L4]}},
        "NVIDIA-L4: 4.",
    ),
    "a shorter request": (
        (node("b", L4),),
        (),
        {"accelerator": {"products": [L4]}, "batching": {"maxModelLen": 29696}},
        "The model takes requests of 131,072 tokens, which do not fit;",
    ),
    "several GPUs": (
        (node("a", T4, 4),),
        (),
        {"parallelism": {"tensorParallelSize": 2}, "accelerator": {"products": [T4]}},
        "GPUs of one replica, all on one node: the weights take 15.0 GiB in all, and one GPU has 14.6 GiB.",
    ),
    "several GPUs for what is asked for": (
        (node("b", L4, 4),),
        ("--max-model-len", "64K"),
        {"parallelism": {"tensorParallelSize": 2}, "accelerator": {"products": [L4]}},
        "The cluster has room for 2 such replicas now.",
    ),
    "what is named": (
        (node("b", L4), node("c", L40S)),
        ("--gpu", "L4", "--max-model-len", "8K"),
        {"accelerator": {"products": [L4]}},
        "NVIDIA-L4",
    ),
    "a shorter request on CPUs": (
        (node("b", None, 0),),
        ("--cpu",),
        {"accelerator": {"type": "cpu"}, "batching": {"maxModelLen": 7168}},
        "The model takes requests of 131,072 tokens, which do not fit; 8,064 fit for sure.",
    ),
    "more than a node has, of what is named": (
        (node("a", T4, 1),),
        ("--gpu", "T4"),
        {"parallelism": {"tensorParallelSize": 2}, "accelerator": {"products": [T4]}},
        "No node has 2 of Tesla-T4 now. The cluster has room for no such replicas now.",
    ),
    "what no node has": ((), ("--gpu", "H100"), {"accelerator": {"products": ["NVIDIA-H100-80GB-HBM3"]}}, "H100"),
}


@pytest.mark.parametrize(("nodes", "words", "spec", "said"), CHOSEN.values(), ids=CHOSEN.keys())
async def test_what_is_chosen_has_a_comment_with_its_figures(
    nodes: tuple[Json, ...],
    words: tuple[str, ...],
    spec: Mapping[str, Any],
    said: str,
    api_server: ApiServer,
    llmservice: Command,
) -> None:
    put(api_server, *nodes)
    ran = await llmservice.within(*WORDS, *words)
    made = yaml.safe_load(ran.out)
    assert made["spec"] | spec == made["spec"], made["spec"]
    assert problems(made) == ()
    comments = " ".join(line.strip().lstrip("# ") for line in ran.out.splitlines() if line.strip().startswith("#"))
    assert said in comments
    assert "note: Fits: " in ran.err


async def test_what_does_not_fit_is_not_printed_but_by_force(api_server: ApiServer, llmservice: Command) -> None:
    put(api_server, node("a", T4, 1))
    with pytest.raises(CliError, match="it does not fit: Tesla-T4") as raised:
        await llmservice.within(*WORDS)
    assert raised.value.exit_code == 1
    assert "--force" in raised.value.remedy
    assert "set spec.precision.weights to fp8" in raised.value.remedy
    ran = await llmservice.within(*WORDS, "--force")
    assert (ran.code, yaml.safe_load(ran.out)["kind"]) == (1, "LLMService")


async def test_a_full_cluster_is_said(api_server: ApiServer, llmservice: Command) -> None:
    put(api_server, node("a", L40S, 1, cpu="1"))
    ran = await llmservice.within(*WORDS)
    assert (ran.code, "The cluster has no room for it now." in ran.err) == (0, True)


async def test_fp8_is_only_proposed_and_with_its_figures(api_server: ApiServer, llmservice: Command) -> None:
    put(api_server, node("b", L4))
    ran = await llmservice.within(*WORDS)
    assert "precision" not in yaml.safe_load(ran.out)["spec"]
    assert "  # precision:\n  #   weights: fp8\n" in ran.out
    assert "instead of 15.0 GiB" in ran.out


NOT_READ: dict[str, tuple[tuple[str, ...], int, str]] = {
    "nodes": (WORDS, 403, "the cluster is not looked at: you have no right to list nodes"),
    "a model that is not there": (("init", "chat", "--model", "org/none"), 0, "the model's configuration is not read"),
}


@pytest.mark.parametrize(("words", "code", "note"), NOT_READ.values(), ids=NOT_READ.keys())
async def test_what_cannot_be_read_is_a_note_and_left_out(
    words: tuple[str, ...], code: int, note: str, api_server: ApiServer, llmservice: Command
) -> None:
    put(api_server, node("b", L4))
    if code:
        api_server.refused["nodes"] = code
    ran = await llmservice.within(*words)
    assert (ran.code, note in ran.err) == (0, True), ran.err
    assert set(yaml.safe_load(ran.out)["spec"]) == {"model"}


async def test_a_cluster_that_is_named_must_answer(api_server: ApiServer, llmservice: Command) -> None:
    api_server.refused["nodes"] = 403
    with pytest.raises(CliError, match="no right to list nodes"):
        await llmservice.within(*WORDS, "--context", "one")


async def test_offline_nothing_is_asked(api_server: ApiServer, hub: Hub, llmservice: Command) -> None:
    ran = await llmservice.within(*WORDS, "--offline")
    assert (ran.code, ran.err, api_server.requests, hub.asked) == (0, "", [], [])


HINTED = {
    "of the hub": (WORDS, 4),
    "on a claim": (("init", "chat", "--model", "pvc://models/x"), 2),
    "on CPUs": ((*WORDS, "--cpu"), 4),
    "with everything": ((*WORDS, "--replicas", "2", "--api-key-secret", "a/b", "--hf-token-secret", "a/b"), 1),
}


@pytest.mark.parametrize(("words", "count"), HINTED.values(), ids=HINTED.keys())
async def test_every_hint_is_admitted_once_it_is_uncommented(
    words: tuple[str, ...], count: int, api_server: ApiServer, llmservice: Command
) -> None:
    put(api_server, node("b", L4))
    made = yaml.safe_load((await llmservice.within(*words)).out)
    found = hints(Choice(made))
    assert len(found) == count
    for hint in found:
        changed = patched(made, {})
        write(changed, hint.path, hint.value)
        assert problems(changed) == (), hint


class Terminal(io.StringIO):
    """Standard input of somebody who answers."""

    def isatty(self) -> bool:
        return True


ANSWERED: dict[str, tuple[tuple[str, ...], str, Mapping[str, Any]]] = {
    "defaults": ((), "org/llama\n\n\n\n\n\n", {"accelerator": {"products": [L40S]}}),
    "everything": (
        (),
        f"org/llama\nmine\n{L4}\n16K\n0-3\nkeys/api\nteam\n",
        {
            "accelerator": {"products": [L4]},
            "batching": {"maxModelLen": 16384},
            "scaling": {"autoscaling": {"minReplicas": 0, "maxReplicas": 3}},
            "endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api"}},
        },
    ),
    "a number of replicas": (("--model", "org/llama"), "mine\nany\nown\n3\nnone\n", {"scaling": {"replicas": 3}}),
    "on CPUs": (("mine",), "org/llama\ncpu\n2K\n\n\n", {"accelerator": {"type": "cpu"}}),
    "again after what cannot be read": (
        ("--gpu", "L4"),
        "\norg/llama\nMine\nmine\nlong\n8K\nmany\n3-2\n1\nkeys\nnone\n",
        {"batching": {"maxModelLen": 8192}},
    ),
}


@pytest.mark.parametrize(("words", "answers", "spec"), ANSWERED.values(), ids=ANSWERED.keys())
async def test_on_a_terminal_it_asks_for_what_is_missing(
    words: tuple[str, ...],
    answers: str,
    spec: Mapping[str, Any],
    api_server: ApiServer,
    llmservice: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(api_server, node("b", L4), node("c", L40S), node("d", None, 0))
    monkeypatch.setattr("sys.stdin", Terminal(answers))
    ran = await llmservice.within("init", *words)
    made = next(yaml.safe_load_all(ran.out))
    assert made["spec"] | spec == made["spec"], made["spec"]
    assert made["spec"]["model"]["uri"] == "hf://org/llama"
    if not ({"--gpu"} & {*words}):
        assert "the cluster has NVIDIA-L4 (22.03 GiB, 4 a node), NVIDIA-L40S (44.39 GiB, 4 a node)" in ran.err


@pytest.mark.parametrize("words", [("--yes",), ()], ids=["told not to", "ended"])
async def test_without_answers_it_is_an_error(
    words: tuple[str, ...], llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))
    with pytest.raises(CliError, match=r"must be given|ended before the last answer") as raised:
        await llmservice.within("init", *words)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("model", "name"),
    [("hf://Qwen/Qwen2.5-7B-Instruct", "qwen2-5-7b-instruct"), ("s3://b/m/", "m"), ("//", "chat"), ("a/b@main", "b")],
)
def test_a_name_is_proposed(model: str, name: str) -> None:
    assert proposed_name(model) == name


TEXTS = st.text("ab\n\t: #'\"-\u2028\x85{[&", max_size=30) | st.text(max_size=200)
SCALARS = TEXTS | st.integers() | st.booleans()
SPECS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), SCALARS),
    max_size=4,
)


@given(SPECS, TEXTS, TEXTS)
def test_what_is_read_of_the_yaml_is_the_manifest_whatever_comments_say(spec: Json, why: str, hint: str) -> None:
    manifest = {"kind": "LLMService", "spec": {**spec, "model": {"uri": "x"}}}
    reasons = dict.fromkeys((*spec, "model.uri"), why)
    written = text(manifest, reasons, (Hint("model.cache.size", hint, why), Hint("scaling", hint, why)))
    assert yaml.safe_load(written) == manifest


@pytest.mark.parametrize(
    ("words", "image", "is_said"),
    [(("--cpu",), None, True), (("--cpu",), "registry.test/vllm-cpu:1", False), (("--gpu", "L4"), None, False)],
)
async def test_a_missing_image_for_cpus_is_said(
    words: tuple[str, ...], image: str | None, is_said: bool, api_server: ApiServer, llmservice: Command
) -> None:
    """Without one the operator refuses the manifest."""
    put(api_server, node("b", L4))
    metadata = {"name": "op", "namespace": "system", "labels": {"app.kubernetes.io/name": "llmservice-operator"}}
    text = yaml.safe_dump({"services": {} if image is None else {"defaultCpuImage": image}})
    api_server.objects["/api/v1/namespaces/system/configmaps/op"] = {
        "metadata": metadata,
        "data": {"settings.yaml": text},
    }
    ran = await llmservice.within(*WORDS, *words)
    assert ("services.defaultCpuImage" in ran.err) is is_said, ran.err
