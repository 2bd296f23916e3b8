"""One command adds a version of vLLM, and no file of the product states the default one on its own."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from llmservice_api.base import ApiModel, Knob
from llmservice_api.spec import LLMServiceSpec
from llmservice_planner.model import registry
from llmservice_runtime.middleware import CLOSED_PATHS
from llmservice_runtime.supervisor import client, read_ahead
from llmservice_vllm import facts, metrics, paths, quantization, versions
from llmservice_vllm.extract import (
    PLACES,
    WORDS,
    NotFound,
    Sources,
    differences,
    fetched,
    files_with,
    installed,
    read,
    with_default,
)
from llmservice_vllm.flags import Match
from llmservice_vllm.versions import FOLDER, default_version, flag_table, known_versions, order, section, words

from tests.support import flag_forms

ROOT = Path(__file__).parents[3]
TOOLS = ("tools/localcluster", "tools/monitoring", "tools/scripts")
FOLDERS = ("operator", "runtime", "cli", "charts", *TOOLS, "examples", "docs")
DERIVED = {
    "charts/llmservice-operator/files/crd.yaml": "make crds",
    "docs/reference/fields.md": "make crds",
    "docs/reference/values.md": "make crds",
    "runtime/requirements-cpu.txt": "tools/scripts/export_requirements.py",
}
STAND_IN = "tools/localcluster/install.py"
"""It names the version that the stand-in was recorded from, the default one or not."""
STATED = re.compile(r"(?:vllm(?!-router)(?:-[a-z-]+)?(?::v|==)|^ +version: )(\d+\.\d+\.\d+)", re.MULTILINE)
"""An image or a package of vLLM, and spec.runtime.version."""
EVERY = ("flags", *WORDS)


def everything(known: str) -> dict[str, dict[str, Any]]:
    return {name: section(known, name) for name in EVERY}


@pytest.mark.parametrize("known", known_versions())
def test_a_version_read_again_changes_nothing(known: str) -> None:
    assert files_with(versions.stated_version(known), everything(known)) == {}


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.parametrize("version", [versions.stated_version(known) for known in known_versions()])
def test_the_wheel_of_a_version_is_as_its_file_says_and_takes_what_the_record_says(version: str) -> None:
    """Fetched from the package index, some hundred megabytes each."""
    with fetched(version) as folder:
        assert files_with(version, read(folder, version)) == {}
        taken = {form: why is None for form, why in flag_forms.asked(folder, version).items()}
    assert taken == flag_forms.recorded(version), f"run: python -m tests.support.flag_forms {version}"


def test_a_version_in_between_changes_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one flag and one word less; the version after it has them again."""
    before = {known: everything(known) for known in known_versions()}
    found = everything("0.29")
    del found["flags"]["--seed"], found["attentionBackends"]["FLASHINFER"]
    written = files_with("0.29.9", found)
    assert {path.name for path in written} == {"0.29.json", "0.30.json"}
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    for path, text in written.items():
        (tmp_path / path.name).write_text(text)
    monkeypatch.setattr(versions, "FOLDER", tmp_path)
    versions._document.cache_clear()
    try:
        assert {known: everything(known) for known in known_versions()} == before | {"0.29": found}
    finally:
        versions._document.cache_clear()


def test_series_are_ordered_as_numbers() -> None:
    assert sorted(["0.100", "0.28", "0.9"], key=order) == ["0.9", "0.28", "0.100"]


@pytest.mark.parametrize("known", known_versions())
def test_a_flag_has_all_its_spellings(known: str) -> None:
    for flag in flag_table(known).flags:
        entry = section(known, "flags")[flag.spellings[0]]
        assert flag.spellings[1:] == (*entry.get("also", ()), *entry.get("negated", ()))
        assert flag.values == entry.get("values", 1)
        assert flag.kind == ("none" if flag.values == 0 else entry.get("kind", "text"))
        for spelling in flag.spellings:
            match = flag_table(known).resolve(spelling)
            assert match == Match(flag, spelling)
            assert match.is_negated == (spelling in entry.get("negated", ()))


def test_the_default_version_is_the_only_one_that_files_name() -> None:
    for path in PLACES:
        assert default_version() in STATED.findall((ROOT / path).read_text()), path
    changed = with_default(ROOT, "0.28.5")
    assert {str(path.relative_to(ROOT)) for path in changed} == {*PLACES, "runtime/llmservice_vllm/versions.py"}
    for file, text in changed.items():
        assert set(STATED.findall(text)) <= {"0.28.5"}, file
    assert 'DEFAULT = "0.28"' in changed[ROOT / "runtime/llmservice_vllm/versions.py"]
    assert with_default(ROOT, default_version()) == {}


def test_no_other_file_names_an_image_of_the_default_version() -> None:
    listing = ["git", "ls-files", *FOLDERS, "pyproject.toml"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {
        path: (ROOT / path).read_text(errors="replace")
        for path in tracked.stdout.split()
        if not path.endswith(".svg") and "/tests/" not in path
    }
    naming = {path for path, text in texts.items() if default_version() in STATED.findall(text)}
    assert naming - {STAND_IN} == {*PLACES} | DERIVED.keys()


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        pytest.param({"--x": {}}, {"--x": {}}, [], id="nothing"),
        pytest.param({"--x": {}}, {}, ["flag removed: --x"], id="a flag less"),
        pytest.param({}, {"--x": {}}, ["flag added: --x"], id="a flag more"),
        pytest.param(
            {"--max-turns": {"kind": "int"}}, {"--max-turn": {"kind": "int"}},
            ["flag renamed: --max-turns is --max-turn"], id="another name",
        ),
        pytest.param(
            {"--max-turns": {"kind": "int"}}, {"--max-turn": {"values": 0}},
            ["flag removed: --max-turns", "flag added: --max-turn"], id="another flag of a like name",
        ),
        pytest.param({"--x": {"default": 1}}, {"--x": {"default": 2}}, ["default of --x: 1 was, 2 is"], id="default"),
        pytest.param(
            {"--x": {"negated": ["--no-x"]}}, {"--x": {"negated": ["--disable-x"]}},
            ["negation of --x: without --no-x, with --disable-x"], id="negation",
        ),
        pytest.param(
            {"--x": {"choices": ["a", "b"]}}, {"--x": {"choices": ["b"]}}, ["choices of --x: without a"], id="choices"
        ),
    ],
)  # fmt: skip
def test_differences_are_said_in_words(was: dict[str, Any], now: dict[str, Any], said: list[str]) -> None:
    nothing: dict[str, Any] = {name: {} for name in WORDS}
    assert list(differences(nothing | {"flags": was}, nothing | {"flags": now})) == said


def test_words_that_come_and_go_are_said() -> None:
    nothing: dict[str, Any] = {name: {} for name in EVERY}
    was, now = nothing | {"posts": {"/a": None}}, nothing | {"posts": {"/b": None}}
    assert list(differences(was, now)) == ["posts: /a is gone", "posts: /b is new"]


def test_what_is_written_otherwise_is_said_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "speculative.py").write_text("Methods = ['ngram']\n")
    with pytest.raises(NotFound, match=r"there is no SpeculativeMethod in vllm/config/speculative\.py"):
        WORDS["speculativeMethods"](Sources(tmp_path))
    with pytest.raises(NotFound, match=r"there is no vllm/envs\.py"):
        WORDS["environment"](Sources(tmp_path))
    with pytest.raises(NotFound, match=r"no cli_args\.py below .* defines make_arg_parser"):
        Sources(tmp_path).parser_modules()
    lacking = Sources(tmp_path / "config").lacks("config.speculative", "vllm.v1.worker.gpu_worker")
    assert lacking == ["vllm/v1/worker/gpu_worker.py: there is none; correct modules.py"]


REGISTRY = """
_TEXT = {"A": ("a", "AModel"), "B": ("vllm.models.b", "BModel"), "C": ("c", "CModel"), "D": ("d", "DModel")}
_SPECULATIVE_DECODING_MODELS = {"ADraft": ("a", "ADraft")}
_VLLM_MODELS = {**_TEXT, "E": ("a", "EModel"), **_SPECULATIVE_DECODING_MODELS}
"""
CLASSES = {
    "model_executor/models/registry.py": REGISTRY,
    "model_executor/models/a.py": """
from .interfaces import SupportsLoRA, SupportsPP
class AModel(nn.Module, SupportsLoRA, SupportsPP): ...
class ADraft(nn.Module): ...
class EModel(nn.Module, SupportsPP): ...
""",
    "models/b/__init__.py": """
if is_rocm():
    from vllm.models.b.amd import BModel
else:
    from .nvidia import BModel
""",
    "models/b/amd.py": "class BModel(nn.Module): ...",
    "models/b/nvidia/__init__.py": "from ..common import Base as BModel",
    "models/b/common.py": "from vllm.model_executor.models.a import AModel\nclass Base(AModel): ...",
    "model_executor/models/c.py": "from .a import AModel\nBase = as_embedding(AModel)\nclass CModel(Base): ...",
    "model_executor/models/d.py": "from transformers import SupportsAll\nclass DModel(SupportsAll, DModel): ...",
}


def test_classes_without_a_base_are_found_through_imports_and_names(tmp_path: Path) -> None:
    for file, text in CLASSES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert WORDS["architecturesWithoutLora"](Sources(tmp_path)) == {"D", "E"}


NEGATION = """

class _Disabling(argparse.BooleanOptionalAction):
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, option_string != "--without-prefix-caching")


def make_arg_parser(parser):
    made = _make_arg_parser(parser)
    action = made._option_string_actions.pop("--no-enable-prefix-caching")
    action.__class__ = _Disabling
    made._option_string_actions["--without-prefix-caching"] = action
    return made
"""
ROUTE = """
@router.post("/v1/made_up")
async def made_up() -> None: ...
"""
REFUSAL = """


def made_up() -> None:
    raise ValueError("this was made up")
"""
PATCHES: tuple[tuple[str, str, str], ...] = (
    ("__init__.py", "", REFUSAL),
    ("config/speculative.py", '    "draft_model",\n', ""),
    ("tool_parsers/__init__.py", '    "hermes": (', '    "hermes2": ('),
    ("engine/arg_utils.py", '"--max-num-seqs"', '"--max-running-seqs"'),
    ("engine/arg_utils.py", '"--scheduling-policy"', '"--scheduling-order-of-requests-v2"'),
    ("entrypoints/launchers/cli_args.py", "def make_arg_parser(", "def _make_arg_parser("),
    ("entrypoints/launchers/cli_args.py", "", NEGATION),
    ("entrypoints/pooling/classify/api_router.py", "", ROUTE),
)
"""By file: a text and what stands in its place; an empty text is the end."""
JUDGE = """
import json, sys
from llmservice_api.service import LLMService
from llmservice_operator.manifests.server import vllm_arguments
from llmservice_planner.checks import check

found = {}
for name, spec in json.load(sys.stdin).items():
    document = {"metadata": {"name": "a", "namespace": "b"}, "spec": {"model": {"uri": "file:///m"}, **spec}}
    service = LLMService.from_object(document)
    arguments = vllm_arguments(service, "0.34.0")
    problems = check(service.spec, image="vllm:v0.34.0", vllm_version="0.34.0", arguments=arguments)
    found[name] = [" ".join(arguments), [f"{p.field} {p.message} {p.remedy}" for p in problems]]
print(json.dumps(found))
"""
DRAFT = {"method": "draftModel", "model": {"uri": "file:///d"}, "numSpeculativeTokens": 2}


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the room, and beside it a vLLM 0.34 that is the installed one but for PATCHES."""
    root = tmp_path_factory.mktemp("next")
    shutil.copytree(FOLDER.parent, root / "runtime" / "llmservice_vllm")
    package = root / "site" / "vllm"
    shutil.copytree(installed()[0] / "vllm", package, ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    for file, old, new in PATCHES:
        text = (package / file).read_text()
        assert not old or text.count(old) == 1, f"{file} is written otherwise now"
        (package / file).write_text(text.replace(old, new) if old else text + new)
    yield root
    shutil.rmtree(root)


def run(root: Path, *command: str, given: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": str(root / "runtime")}
    done = subprocess.run([sys.executable, *command], env=environment, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.vllm
def test_the_command_alone_adds_a_version_and_every_refusal_and_rendering_is_right(next_version: Path) -> None:
    command = ("-m", "llmservice_vllm.extract", "0.34.0", "--from", str(next_version / "site"))
    said = run(next_version, *command)
    for line in (
        "flag renamed: --max-num-seqs is --max-running-seqs",
        "flag removed: --scheduling-policy",
        "negation of --enable-prefix-caching: without --no-enable-prefix-caching, without --disable-prefix-caching, "
        "with --without-prefix-caching",
        "speculativeMethods: draft_model is gone",
        "toolCallParsers: hermes is gone",
        "toolCallParsers: hermes2 is new",
        "posts: /v1/made_up is new",
        "refusal new: vllm/__init__.py: this was made up",
        "Written: runtime/llmservice_vllm/versions/0.34.json, runtime/llmservice_vllm/messages.json.",
    ):
        assert f"  {line}\n" in said or f"\n{line}\n" in said, line
    assert "Written: nothing, it is all there." in run(next_version, *command), "a second run changes nothing"

    asked = {
        "plain": {},
        "renamed": {"batching": {"maxNumSeqs": 4}},
        "gone": {"batching": {"schedulingPolicy": "priority"}},
        "negated": {"batching": {"prefixCaching": False}},
        "method": {"speculativeDecoding": DRAFT},
        "parser": {"generation": {"toolCallParser": "hermes"}},
        "given": {"runtime": {"extraArgs": ["--enable-prefix-cachin"]}},
    }
    found = json.loads(run(next_version, "-c", JUDGE, given=json.dumps(asked)))
    refusals = {name: problems for name, (_, problems) in found.items()}
    having = ", ".join(known_versions())
    assert refusals["plain"] == refusals["negated"] == []
    assert "--without-prefix-caching" in found["negated"][0].split()
    for name, words_said in {
        "renamed": f"maxNumSeqs it stands for --max-num-seqs, which vLLM 0.34.0 does not have; vLLM {having} does.",
        "gone": "spec.batching.schedulingPolicy it stands for --scheduling-policy, which vLLM 0.34.0 does not have",
        "method": f"method draft_model of --speculative-config, which vLLM 0.34.0 does not have; vLLM {having} does.",
        "parser": "Use one of hermes2",
        "given": "spec.runtime.extraArgs",
    }.items():
        (problem,) = refusals[name]
        assert words_said in problem, name


USING_NO_MODEL = {"/ping", "/inference/v1/abort_requests", "/v1/responses/{response_id}/cancel"}
"""POST paths that are open to clients and no use of the model: a check of health, and ends of requests."""


@pytest.mark.parametrize("known", known_versions())
def test_each_post_of_a_version_uses_the_model_or_is_closed(known: str) -> None:
    """One that is neither would let an autoscaled service sleep while it is used; see MODEL_POSTS and CLOSED_PATHS."""
    open_ones = {path for path in section(known, "posts") if not path.startswith(CLOSED_PATHS)}
    assert open_ones - USING_NO_MODEL <= set(paths.MODEL_POSTS)


def test_each_path_that_uses_the_model_is_one_of_some_version() -> None:
    assert set(paths.MODEL_POSTS) <= {path for known in known_versions() for path in section(known, "posts")}


def knobs(model: type[ApiModel]) -> Iterator[Knob]:
    for info in model.model_fields.values():
        yield from (one for one in info.metadata if isinstance(one, Knob) and one.flags)
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, ApiModel):
                yield from knobs(kind)


@pytest.mark.parametrize("known", known_versions())
def test_each_default_is_that_of_the_version(known: str) -> None:
    """Those in force where a field is not set, and those of the plan and the supervisor."""
    shown = {one.flags[0]: one.effective for one in knobs(LLMServiceSpec) if isinstance(one.effective, int | str)}
    assert len(shown) >= 7
    stated = {
        "--gpu-memory-utilization": facts.GPU_MEMORY_UTILIZATION,
        "--max-loras": facts.MAX_LORAS,
        "--max-lora-rank": facts.MAX_LORA_RANK,
    }
    flags = section(known, "flags")
    for some in (shown, stated):
        assert {flag: flags[flag].get("default") for flag in some} == some


VARIABLE = re.compile(r"\bVLLM_[A-Z_]+\b")
FLAG = re.compile(r'"(--[a-z-]+)"')
READ = (
    "operator/llmservice_planner/requests.py",
    "runtime/llmservice_runtime/supervisor/vllm_process.py",
)
"""Files that look for flags by their names."""
IMAGES = {"VLLM_BUILT_NEEDS", "VLLM_CACHED_NEEDS"}
"""Names of the local cluster's code, no variables."""


@functools.cache
def ours() -> dict[str, Collection[str]]:
    """Names that the product takes for granted, by the section that has them."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.parent.name != "tests")
    need = quantization.MINIMUM_CAPABILITY.keys() | quantization.ONLINE | quantization.DEPRECATED
    return {
        "environment": {name for path in files for name in VARIABLE.findall(path.read_text())} - IMAGES,
        "flags": {name for path in READ for name in FLAG.findall((ROOT / path).read_text())},
        "kvCacheDtypes": quantization.CPU_KV_TYPES,
        "loadFormats": read_ahead.LOAD_FORMATS,
        "metrics": {name for role, name in vars(metrics).items() if role.isupper() and role != "PREFIX"},
        "posts": (*paths.STREAMING, *paths.MULTIPART, *(path for path, _ in client.REQUESTS)),
        "quantizations": need | quantization.AWQ | quantization.PACKED | {*quantization.AMD_METHODS},
    }


SINCE = {"--engram-config": "0.30", metrics.REJECTIONS: "0.32", "--watchdog-config": "0.33"}
"""Names that are asked for where the version has them."""


@pytest.mark.parametrize("known", known_versions())
@pytest.mark.parametrize(
    "kind", ["environment", "flags", "kvCacheDtypes", "loadFormats", "metrics", "posts", "quantizations"]
)
def test_each_name_of_ours_is_one_of_the_version(kind: str, known: str) -> None:
    """Counters have _total on the page alone."""
    asked = {name for name in ours()[kind] if order(SINCE.get(name, "0.0")) <= order(known)}
    there = section(known, kind).keys()
    assert len(asked) > 2
    assert {name for name in asked if there.isdisjoint({name, name.removesuffix("_total")})} == set()


def test_each_class_that_is_planned_is_one_of_some_version() -> None:
    assert registry.SUPPORTED.keys() <= versions.words_of_all("architectures")


def test_words_are_those_of_the_version() -> None:
    assert "medusa" in words("0.32.0", "speculativeMethods")
    with pytest.raises(versions.UnknownVersion, match=r"nothing is known of vLLM 0\.99"):
        words("0.99", "speculativeMethods")
