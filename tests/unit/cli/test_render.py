"""`llmservice render`: the operator's own decision about a manifest, without a cluster."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_cli import settings
from llmservice_cli.errors import ExitCode
from llmservice_cli.manifests import services
from llmservice_cli.masking import redactor_of
from llmservice_cli.render import decided
from llmservice_cli.render.decided import new
from llmservice_cli.render.preview import Preview, Restart, show
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.settings import Settings
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.room import Room

from tests.unit.cli_world import FACTS, LLAMA_8B, OTHER_KIND, Command, Json, Ran, manifest
from tests.unit.decide_world import World

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CPU: Json = {"accelerator": {"type": "cpu"}, "runtime": {"image": "registry.example.com/vllm-cpu:v0.32.0"}}
FITS: Json = {**CPU, "batching": {"maxModelLen": 1024}}
TOKEN = "hf_abcdefghijklmnop"


def with_env(*env: Json) -> Json:
    return manifest(**{**FITS, "runtime": {**FITS["runtime"], "env": list(env)}})


class Render:
    def __init__(self, llmservice: Command) -> None:
        self.llmservice = llmservice

    def __call__(self, *words: str, of: Json | list[Json], output: str = "json") -> Ran:
        path = self.llmservice.manifest(*(of if isinstance(of, list) else [of]))
        return self.llmservice("render", "-f", path, "-o", output, *words)

    def only(self, *words: str, of: Json) -> tuple[int, Json]:
        """The exit code, and what the JSON has of the only service."""
        ran = self(*words, of=of)
        (service,) = ran.json["services"]
        return ran.code, service


@pytest.fixture
def render(llmservice: Command) -> Render:
    return Render(llmservice)


def manifests_of(service: Json) -> list[Any]:
    return [each["manifest"] for each in service["objects"]]


def decision_of_operator(written: Mapping[str, Any], given: Settings, model: Json | None = None) -> Any:
    """As for an LLMService that was just made, by an operator that may list no nodes."""
    obj = new(written, "default")
    if model is not None:
        obj["status"] = {"model": model}
    world = World(obj, settings=given, sibling_model={})
    world.gpus, world.room = ClusterGPUs(not_listed="no cluster is asked"), Room(unknown="no cluster is asked")
    return world.decide()


@pytest.mark.parametrize("is_inspected", [False, True], ids=["before the inspection", "after it"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_what_is_rendered_is_what_the_operator_decides(
    example: Path, is_inspected: bool, render: Render, llmservice: Command
) -> None:
    (written,) = (each.manifest for each in services(str(example)).services)
    given = llmservice.text("settings.yaml", "services: {defaultCpuImage: 'r.test/vllm-cpu:v0.32.0', operatorImage: a}")
    model: Json | None = None
    more: tuple[str, ...] = ()
    if is_inspected:
        more = ("--config", llmservice.config())
        key = inspection_key(World(new(written, "default")).service().spec)
        model = {"inspection": key, "config": json.dumps(LLAMA_8B, sort_keys=True, separators=(",", ":"))}
    _, service = render.only("--settings", given, *more, of=dict(written))
    decision = decision_of_operator(written, settings.of_file(given), model)
    assert manifests_of(service) == json.loads(json.dumps([apply.manifest for apply in decision.apply]))
    keys = ("type", "status", "reason", "message")
    assert service["conditions"] == [{key: c[key] for key in keys} for c in decision.status["conditions"]]


ALL = ["Service", "ControllerRevision", "Deployment"]
BUDGET = [*ALL, "PodDisruptionBudget"]
ENDS: dict[str, tuple[Json, int, list[str], str]] = {
    "it fits": (FITS, 0, ALL, "1 pod is started"),
    "it does not fit": (CPU, 1, [], "no pod is started (DoesNotFit)"),
    "it does not fit, and that only warns": ({**CPU, "fitPolicy": "Warn"}, 0, ALL, "1 pod is started"),
    "two replicas": ({**FITS, "scaling": {"replicas": 2}}, 0, BUDGET, "2 pods are started"),
    "paused": ({**FITS, "paused": True}, 0, [], "no pod is started (Paused)"),
    "an unknown model": ({"model": {"uri": "hf://a/b"}}, 0, ["Job"], "no pod is started yet (InspectingModel)"),
    "refused": ({"accelerator": {"type": "cpu"}}, 2, [], "nothing is made: the spec is refused"),
}


@pytest.mark.parametrize(("spec", "code", "kinds", "restart"), ENDS.values(), ids=ENDS)
def test_the_exit_code_says_whether_anything_would_run(
    spec: Json, code: int, kinds: list[str], restart: str, render: Render
) -> None:
    ended, service = render.only(of=manifest(**spec))
    assert (ended, [each["kind"] for each in service["objects"]]) == (code, kinds)
    assert restart in service["restart"]["reason"]
    assert (service["restart"]["pods"], service["accepted"]) == (0, code != ExitCode.BAD_INPUT)


def test_manifests_are_yaml_with_the_rest_as_comments(render: Render) -> None:
    given = [manifest(**FITS), manifest("other", **FITS)]
    expected = [each for service in render(of=given).json["services"] for each in manifests_of(service)]
    out = render(of=given, output="yaml").out
    assert [document for document in yaml.safe_load_all(out) if document is not None] == expected
    assert "# chat in namespace default: no restart: nothing runs yet, and 1 pod is started\n" in out
    assert "#   Accepted   True: Valid." in out
    assert "#   create     Deployment other" in out


def test_a_summary_has_no_manifests(render: Render) -> None:
    lines = render("-n", "team", of=manifest(**FITS), output="table").out.splitlines()
    assert lines[0].startswith("chat in namespace team: ")
    assert [line.split()[:2] for line in lines[3:]] == [["create", kind] for kind in ALL]


def test_other_kinds_are_skipped_and_the_valid_services_are_rendered(
    llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = manifest("bad", batching={"maxNumSeqs": 0})
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump_all([OTHER_KIND, manifest(**FITS), bad])))
    ran = llmservice("render", "-f", "-", "-o", "json")
    assert (ran.code, [service["name"] for service in ran.json["services"]]) == (2, ["chat"])
    assert ran.errors[0] == "note: skipped Service front"
    assert "standard input, document 3: bad: spec.batching.maxNumSeqs" in ran.errors[1]


ADAPTER = '{"peft_type": "LORA", "lora_alpha": 32}'
FILES = {
    "adapter/adapter_config.json": ADAPTER,
    "list.yaml": "- services",
    "odd.yaml": "services: {defaultCPUImage: a}",
    "deep.yaml": "[" * 1100,
    "value.yaml": 'services: {x: !!int ""}',
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--settings", "{}/none.yaml"), "--settings: {}/none.yaml cannot be read: No such file or directory."),
        (("--settings", "{}/list.yaml"), "it has no mapping `services`"),
        (("--settings", "{}/odd.yaml"), "unknown settings: defaultCPUImage"),
        (("--settings", "{}/deep.yaml"), "it is no YAML"),
        (("--settings", "{}/value.yaml"), "it is no YAML: the value is no int"),
        (("--config", "{}/none.json"), "--config: {}/none.json"),
        (("--config", "{}/adapter"), "--config: {}/adapter is an adapter"),
        (("-n", "two"), "-n: the manifest is of namespace one, and -n says two."),
    ],
)
def test_what_is_wrong_with_an_option_names_it(
    words: tuple[str, str], message: str, render: Render, llmservice: Command
) -> None:
    (llmservice.folder / "adapter").mkdir()
    for name, content in FILES.items():
        llmservice.text(name, content)
    given = manifest(**FITS)
    given["metadata"]["namespace"] = "one"
    folder = llmservice.folder
    ran = render(*(word.format(folder) for word in words), of=given)
    assert (ran.code, message.format(folder) in ran.err) == (ExitCode.BAD_INPUT, True)


@pytest.mark.parametrize("output", ["yaml", "json", "table"])
def test_secrets_are_not_printed(output: str, render: Render) -> None:
    env = ({"name": "TEAM_TOKEN", "value": TOKEN}, {"name": "PROXY", "value": f"http://me:{TOKEN}@proxy"})
    ran = render(of=with_env(*env), output=output)
    assert (ran.code, TOKEN in ran.out + ran.err, "***" in ran.out) == (0, False, output != "table")


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
    render: Render, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_ever(document: str) -> bytes:
        while True:
            pass

    monkeypatch.setattr(decided, "read", for_ever)
    monkeypatch.setattr(decided, "SECONDS", 0.05)
    given = manifest(**{**FITS, "model": {"uri": "hf://a/b"}})
    _, service = render.only("--config", llmservice.config(), of=given)
    (fits,) = (each for each in service["conditions"] if each["type"] == "Fits")
    assert "takes more processor time than it may" in fits["message"]


HUB: Json = {"model": {"uri": "hf://a/b"}}
HOSTILE: dict[str, Json] = {
    "no spec": {"spec": None},
    "a list": {"spec": []},
    "no metadata": {"metadata": None},
    "a path as name": {"metadata": {"name": "a/../b"}},
    "two lines as namespace": {"metadata": {"name": "chat", "namespace": "a\nb"}},
    "an odd env": {"spec": HUB | {"runtime": {"env": {"name": 1}}}},
    "a large number": {"spec": HUB | {"scaling": {"replicas": 1e99}}},
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_hostile_manifests_are_bad_input(hostile: Json, render: Render) -> None:
    ran = render(of=manifest() | hostile)
    assert (ran.code, ran.json["services"]) == (ExitCode.BAD_INPUT, [])
    assert all(line.startswith("error: ") for line in ran.errors)


def test_the_status_of_a_manifest_is_ignored(render: Render) -> None:
    """As with an API server, to which it has a way of its own."""
    model = {"inspection": "0000000000", "config": json.dumps(FACTS)}
    _, service = render.only(of=manifest(**HUB) | {"status": {"model": model}})
    assert [each["kind"] for each in service["objects"]] == ["Job"]


@pytest.mark.parametrize("command", ["render", "plan"])
@pytest.mark.parametrize("value", [12345678, 1234567.5, ["12345678"], {"a": 12345678}, 10**99 + 12345678])
def test_secrets_are_not_printed_in_what_is_wrong_with_them(command: str, value: Any, llmservice: Command) -> None:
    path = llmservice.manifest(with_env({"name": "DB_PASSWORD", "value": value}))
    ran = llmservice(command, "-f", path)
    assert ran.code == ExitCode.BAD_INPUT
    assert "must be of type string, not " in ran.err
    assert "***" in ran.err
    assert "1234567" not in ran.err
    assert "10000000" not in ran.err


def test_secrets_among_aliases_are_found_soon() -> None:
    value: list[Any] = [{"name": "DB_PASSWORD", "value": 12345678}]
    for _ in range(60):
        value = [value, value]
    value.append(value)
    assert redactor_of(value).clean("not 12345678") == "not ***"


@pytest.mark.parametrize("output", ["yaml", "json", "table"])
def test_secrets_are_not_printed_in_conditions(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a refused spec no object is made that has the value."""
    obj = new(manifest(runtime={"env": [{"name": "TEAM_TOKEN", "value": TOKEN}]}), "default")
    condition = {"type": "Accepted", "status": "False", "reason": "Invalid", "message": f"not {TOKEN}"}
    show([Preview.of(obj, (), {"conditions": [condition]}, Restart(0, ""))], output)
    assert "not ***" in capsys.readouterr().out


def test_the_scaled_object_is_rendered_with_the_settings_and_without_stated_replicas(
    render: Render, llmservice: Command
) -> None:
    scaler = "{scalerAddress: 'scaler.llms.svc:9443', scalerAuthentication: scaler}"
    given = llmservice.text("settings.yaml", f"services: {scaler}")
    autoscaling: Json = {"autoscaling": {"maxReplicas": 4}}
    for words, scaling, is_made, reason in (
        (("--settings", given), autoscaling, True, "Progressing"),
        (("--settings", given), {"replicas": 2, **autoscaling}, False, "ReplicasStated"),
        ((), autoscaling, False, "AutoscalingDisabled"),
    ):
        _, service = render.only(*words, of=manifest(**FITS, scaling=scaling))
        assert ("ScaledObject" in {each["kind"] for each in service["objects"]}) == is_made
        conditions = {each["type"]: each["reason"] for each in service["conditions"]}
        assert conditions["Autoscaled"] == reason
