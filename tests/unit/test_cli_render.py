"""`llmservice render`: the operator's own decision about a manifest, without a cluster."""

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
from llmservice_cli.manifests import services
from llmservice_cli.masking import redactor_of
from llmservice_cli.render import decided, settings
from llmservice_cli.render.desired import new
from llmservice_cli.render.output import show
from llmservice_cli.render.preview import Preview, Restart
from llmservice_operator.build.inspection import inspection_key
from llmservice_operator.build.settings import Settings
from llmservice_operator.planner.cluster import ClusterGPUs
from llmservice_operator.planner.room import Room

from .cli_plan_world import LLAMA_8B, config
from .decide_world import World
from .test_cli_plan_manifest import FACTS, OTHER_KIND, service, write

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CPU: dict[str, Any] = {"accelerator": {"type": "cpu"}, "runtime": {"image": "registry.example.com/vllm-cpu:v0.32.0"}}
FITS: dict[str, Any] = {**CPU, "batching": {"maxModelLen": 1024}}
TOKEN = "hf_abcdefghijklmnop"


class Rendered:
    """What one call came to."""

    def __init__(self, code: int, out: str, errors: str) -> None:
        self.code, self.out, self.errors = code, out, errors.splitlines()

    @property
    def services(self) -> list[dict[str, Any]]:
        document = json.loads(self.out)
        assert document["version"] == 1
        found: list[dict[str, Any]] = document["services"]
        return found

    @property
    def manifests(self) -> list[Any]:
        (only,) = self.services
        return [each["manifest"] for each in only["objects"]]


def render(capsys: pytest.CaptureFixture[str], *words: str) -> Rendered:
    code = run(["render", "-o", "json", *words])
    return Rendered(code, *capsys.readouterr())


def decision_of_operator(manifest: Mapping[str, Any], given: Settings, model: dict[str, Any] | None = None) -> Any:
    """As for an LLMService that was just made, by an operator that may list no nodes."""
    obj = new(manifest, "default")
    if model is not None:
        obj["status"] = {"model": model}
    world = World(obj, settings=given, sibling_model={})
    world.gpus, world.room = ClusterGPUs(unasked="no cluster is asked"), Room(unknown="no cluster is asked")
    return world.decide()


@pytest.fixture
def cpu_settings(tmp_path: Path) -> str:
    path = tmp_path / "settings.yaml"
    path.write_text("services: {defaultCpuImage: 'registry.example.com/vllm-cpu:v0.32.0', operatorImage: 'op:1'}")
    return str(path)


@pytest.mark.parametrize("is_inspected", [False, True], ids=["before the inspection", "after it"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_what_is_rendered_is_what_the_operator_decides(
    example: Path, is_inspected: bool, cpu_settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (manifest,) = (each.manifest for each in services(str(example)).services)
    more = ("--config", config(tmp_path)) if is_inspected else ()
    rendered = render(capsys, "-f", str(example), "--settings", cpu_settings, *more)
    model = None
    if is_inspected:
        key = inspection_key(World(new(manifest, "default")).service().spec)
        model = {"inspection": key, "config": json.dumps(LLAMA_8B, sort_keys=True, separators=(",", ":"))}
    decision = decision_of_operator(manifest, settings.of_file(cpu_settings), model)
    assert rendered.manifests == json.loads(json.dumps([apply.manifest for apply in decision.apply]))
    (told,) = rendered.services
    shown = [{key: c[key] for key in ("type", "status", "reason", "message")} for c in decision.status["conditions"]]
    assert told["conditions"] == shown


@pytest.mark.parametrize(
    ("spec", "code", "kinds", "restart"),
    [
        pytest.param(FITS, 0, ["Service", "ControllerRevision", "Deployment"], "1 pod is started", id="it fits"),
        pytest.param(CPU, 1, [], "no pod is started (DoesNotFit)", id="it does not fit"),
        pytest.param({**CPU, "fitPolicy": "Warn"}, 0, ["Service", "ControllerRevision", "Deployment"],
                     "1 pod is started", id="it does not fit, and that only warns"),
        pytest.param({**FITS, "scaling": {"replicas": 2}}, 0,
                     ["Service", "ControllerRevision", "Deployment", "PodDisruptionBudget"], "2 pods are started",
                     id="two replicas"),
        pytest.param({**FITS, "paused": True}, 0, [], "no pod is started (Paused)", id="paused"),
        pytest.param({"model": {"uri": "hf://a/b"}}, 0, ["Job"], "no pod is started yet (InspectingModel)",
                     id="nothing is known of the model"),
        pytest.param({"accelerator": {"type": "cpu"}}, 2, [], "nothing is made: the spec is refused",
                     id="the operator refuses it"),
    ],
)  # fmt: skip
def test_the_exit_code_says_whether_anything_would_run(
    spec: dict[str, Any], code: int, kinds: list[str], restart: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = render(capsys, "-f", write(tmp_path, service(**spec)))
    (told,) = rendered.services
    assert (rendered.code, [each["kind"] for each in told["objects"]]) == (code, kinds)
    assert restart in told["restart"]["reason"]
    assert told["restart"]["pods"] == 0
    assert told["accepted"] is (code != ExitCode.BAD_INPUT)


def test_manifests_are_yaml_with_the_rest_as_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, service(**FITS), service("other", **FITS))
    expected = [each["manifest"] for told in render(capsys, "-f", path).services for each in told["objects"]]
    assert run(["render", "-f", path]) == 0
    out = capsys.readouterr().out
    assert [document for document in yaml.safe_load_all(out) if document is not None] == expected
    assert "# chat in namespace default: no restart: nothing runs yet, and 1 pod is started\n" in out
    assert "#   Accepted   True: Valid." in out
    assert "#   create     Deployment other" in out


def test_a_summary_has_no_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-f", write(tmp_path, service(**FITS)), "-o", "summary", "-n", "team"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("chat in namespace team: ")
    assert [line.split()[:2] for line in lines[3:]] == [
        ["create", kind] for kind in ("Service", "ControllerRevision", "Deployment")
    ]


def test_what_is_no_llmservice_is_skipped_and_the_good_ones_are_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = service("bad", batching={"maxNumSeqs": 0})
    text = yaml.safe_dump_all([OTHER_KIND, service(**FITS), bad])
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    rendered = render(capsys, "-f", "-")
    assert (rendered.code, [told["name"] for told in rendered.services]) == (2, ["chat"])
    assert rendered.errors[0] == "note: skipped Service front"
    assert "standard input, document 3: bad: spec.batching.maxNumSeqs" in rendered.errors[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--settings", "{}/none.yaml"), "--settings: {}/none.yaml cannot be read: No such file or directory."),
        (("--settings", "{}/list.yaml"), "it has no mapping `services`"),
        (("--settings", "{}/odd.yaml"), "unknown settings: defaultCPUImage"),
        (("--settings", "{}/deep.yaml"), "it is no YAML"),
        (("--config", "{}/none.json"), "--config: {}/none.json"),
        (("-n", "two"), "-n: the manifest is of namespace one, and -n says two."),
    ],
)
def test_what_is_wrong_with_an_option_names_it(
    words: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.yaml").write_text("- services")
    (tmp_path / "odd.yaml").write_text("services: {defaultCPUImage: a}")
    (tmp_path / "deep.yaml").write_text("[" * 2000)
    manifest = service(**FITS)
    manifest["metadata"]["namespace"] = "one"
    rendered = render(capsys, "-f", write(tmp_path, manifest), *(word.format(tmp_path) for word in words))
    assert rendered.code == ExitCode.BAD_INPUT
    assert said.format(tmp_path) in "\n".join(rendered.errors)


def test_secrets_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = [{"name": "TEAM_TOKEN", "value": TOKEN}, {"name": "PROXY", "value": f"http://me:{TOKEN}@proxy"}]
    path = write(tmp_path, service(**{**FITS, "runtime": {**FITS["runtime"], "env": env}}))
    for output in ("yaml", "json", "summary"):
        assert run(["render", "-f", path, "-o", output]) == 0
        said = capsys.readouterr()
        assert TOKEN not in said.out + said.err
        assert output == "summary" or "***" in said.out


def test_the_defaults_are_those_of_the_chart() -> None:
    chart = ROOT / "charts" / "llmservice-operator"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    image = {
        "operatorImage": f"{values['image']['repository']}:{about['appVersion']}",
        "imagePullPolicy": values["image"]["pullPolicy"],
    }
    assert settings.defaults() == Settings.from_mapping(image | values["services"])
    assert settings.of_text((chart / "values.yaml").read_text()) == settings.defaults()


def test_a_configuration_that_takes_too_long_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_ever(document: str) -> bytes:
        while True:
            pass

    monkeypatch.setattr(decided, "read", for_ever)
    monkeypatch.setattr(decided, "SECONDS", 0.05)
    manifest = service(**FITS) | {"spec": {**FITS, "model": {"uri": "hf://a/b"}}}
    rendered = render(capsys, "-f", write(tmp_path, manifest), "--config", config(tmp_path))
    (told,) = rendered.services
    (fits,) = (each for each in told["conditions"] if each["type"] == "Fits")
    assert "takes more processor time than it may" in fits["message"]


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param({"spec": None}, id="no spec"),
        pytest.param({"spec": []}, id="a list"),
        pytest.param({"metadata": None}, id="no metadata"),
        pytest.param({"metadata": {"name": "a/../b"}}, id="a path as name"),
        pytest.param({"metadata": {"name": "chat", "namespace": "a\nb"}}, id="two lines as namespace"),
        pytest.param({"spec": {"model": {"uri": "hf://a/b"}, "runtime": {"env": {"name": 1}}}}, id="an odd env"),
        pytest.param({"spec": {"model": {"uri": "hf://a/b"}, "scaling": {"replicas": 1e99}}}, id="a large number"),
    ],
)
def test_hostile_manifests_are_bad_input(
    hostile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = render(capsys, "-f", write(tmp_path, service() | hostile))
    assert rendered.code == ExitCode.BAD_INPUT
    assert rendered.services == []
    assert all(line.startswith("error: ") for line in rendered.errors)


def test_status_of_a_manifest_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with an API server, to which it has a way of its own."""
    model = {"inspection": "0000000000", "config": json.dumps(FACTS)}
    manifest = service() | {"status": {"model": model}, "spec": {"model": {"uri": "hf://a/b"}}}
    (told,) = render(capsys, "-f", write(tmp_path, manifest)).services
    assert [each["kind"] for each in told["objects"]] == ["Job"]


@pytest.mark.parametrize("command", ["render", "plan"])
@pytest.mark.parametrize("value", [12345678, 1234567.5, ["12345678"], {"a": 12345678}, 10**99 + 12345678])
def test_secrets_are_not_printed_in_what_is_wrong_with_them(
    command: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = [{"name": "DB_PASSWORD", "value": value}]
    path = write(tmp_path, service(**{**FITS, "runtime": {**FITS["runtime"], "env": env}}))
    assert run([command, "-f", path]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert "must be of type string, not " in said
    assert "***" in said
    assert "1234567" not in said
    assert "10000000" not in said


def test_secrets_among_aliases_are_found_soon() -> None:
    value: list[Any] = [{"name": "DB_PASSWORD", "value": 12345678}]
    for _ in range(60):
        value = [value, value]
    value.append(value)
    assert redactor_of(value).clean("not 12345678") == "not ***"


@pytest.mark.parametrize("output", ["yaml", "json", "summary"])
def test_secrets_are_not_printed_in_conditions(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a refused spec no object is made that has the value."""
    env = [{"name": "TEAM_TOKEN", "value": TOKEN}]
    refused = Preview.of(
        new(service(runtime={"env": env}), "default"),
        (),
        {"conditions": [{"type": "Accepted", "status": "False", "reason": "Invalid", "message": f"not {TOKEN}"}]},
        Restart(0, ""),
    )
    show([refused], output)
    assert "not ***" in capsys.readouterr().out
