"""`llmservice diff` against a real HTTP server that shows a world of one LLMService, and takes no write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.diff import live
from llmservice_cli.errors import BadInput, CliError, ExitCode
from llmservice_cli.render.desired import new
from llmservice_operator.api.child_kinds import CHILD_KINDS
from llmservice_operator.build.inspection import inspection_key

from .cli_diff_world import (
    IMAGE,
    INSPECTED_FIRST,
    Api,
    actions,
    diff,
    manifest,
    options_of,
    served,
    told,
)
from .cli_plan_world import LLAMA_8B, config


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    async with served(tmp_path, monkeypatch) as made:
        yield made


async def test_what_is_applied_already_does_not_differ(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = await diff(capsys, manifest())
    assert code == ExitCode.DONE
    assert out.splitlines()[0] == "x in namespace team-a: no restart"
    assert [line.split()[:2] for line in out.splitlines() if "unchanged" in line] == [
        ["unchanged", "Service"], ["unchanged", "Deployment"], ["unchanged", "PodDisruptionBudget"],
    ]  # fmt: skip
    assert "---" not in out
    assert "settings: ConfigMap system/operator" in out


async def test_a_child_whose_crd_is_not_installed_is_not_made_and_the_status_says_so(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CHILD_KINDS", tuple(replace(child, is_optional=True) for child in CHILD_KINDS))
    del api.world.children["PodDisruptionBudget", "x"]
    api.missing = {"PodDisruptionBudget"}
    code, out = await diff(capsys, manifest(), "-o", "json")
    assert code == ExitCode.DONE
    assert "poddisruptionbudgets.policy cannot be listed" in out


async def test_an_edit_of_the_engine_names_the_flag_and_the_pods_that_restart(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    before = api.world.revision()
    code, out = await diff(capsys, manifest(batching={"maxNumSeqs": 16}))
    assert code == ExitCode.DIFFERS
    first, *_ = out.splitlines()
    assert "RESTART: 2 pods are replaced by revision " in first
    assert "--max-num-seqs: 8 -> 16" in first
    assert before not in first
    lines = out.splitlines()
    assert "--- live/Deployment/x" in lines
    assert "-        - '8'" in lines
    assert "+        - '16'" in lines
    assert not any("live/Service" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "code", "changed", "restart"),
    [
        pytest.param({"scaling": {"replicas": 3}}, 1, {"Deployment": "change"},
                     "no restart: the pod template stays; replicas: 2 -> 3", id="more replicas"),
        pytest.param({"scaling": {"replicas": 1}}, 1, {"Deployment": "change", "PodDisruptionBudget": "delete"},
                     "no restart: the pod template stays; replicas: 2 -> 1", id="one replica"),
        pytest.param({"endpoint": {"port": 8080}}, 1, {"Service": "change"}, "no restart", id="another port"),
        pytest.param({"paused": True, "batching": {"maxNumSeqs": 16}}, 0, {}, "no restart (Paused)", id="paused"),
        pytest.param({"model": {"uri": "hf://a/b"}}, 1, {"Job": "create"}, INSPECTED_FIRST,
                     id="a model that is to be inspected first"),
        pytest.param({"runtime": {}}, 2, {}, "no restart, and what runs stays as it is: the spec is refused",
                     id="refused by the operator"),
        pytest.param({"rollout": {"pinnedRevision": "0123456789"}}, 2, {},
                     "no restart, and what runs stays as it is: the spec is refused", id="no such revision"),
    ],
)  # fmt: skip
async def test_only_what_pods_are_made_of_restarts_them(
    api: Api,
    changes: dict[str, Any],
    code: int,
    changed: dict[str, str],
    restart: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended, service = await told(capsys, manifest(**changes))
    assert (ended, actions(service), service["restart"]) == (code, changed, {"pods": 0, "reason": restart})


@pytest.mark.parametrize("is_known", [True, False], ids=["inspected", "given by --config"])
async def test_the_facts_of_the_model_are_those_of_the_inspection(
    api: Api, is_known: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = manifest(model={"uri": "hf://a/b"}, fitPolicy="Warn")
    words: tuple[str, ...] = ("--config", config(tmp_path))
    if is_known:
        api.world.obj["spec"] = new(edited, "team-a")["spec"]
        found = {"config": json.dumps(LLAMA_8B), "inspection": inspection_key(api.world.service().spec)}
        api.world.obj["status"]["model"] = found
        words = ()
    code, service = await told(capsys, edited, *words)
    assert (code, actions(service)) == (ExitCode.DIFFERS, {"ControllerRevision": "create", "Deployment": "change"})
    assert "--model: /models/tiny -> /llmservice/fetch/artifacts/model" in service["restart"]["reason"]


async def test_a_gap_that_the_operator_reports_before_it_acts_is_a_restart(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    api.world.edit(scaling={"replicas": 1})
    api.world.settle()
    api.world.roll_out()
    api.world.settle()
    (pod,) = api.world.pods.values()
    pod["spec"] |= {"containers": api.world.deployment["spec"]["template"]["spec"]["containers"]}
    allocatable = {"cpu": "1", "memory": "4Gi", "pods": "9"}
    api.objects.append({"kind": "Node", "metadata": {"name": "node-a"}, "status": {"allocatable": allocatable}})
    _, service = await told(capsys, manifest(scaling={"replicas": 1}, batching={"maxNumSeqs": 16}))
    assert actions(service)["Deployment"] == "change"
    assert service["restart"]["pods"] == 1
    assert "strategy Replace" in service["restart"]["reason"]
    assert "There is one replica" in service["restart"]["reason"]


async def test_after_the_apply_nothing_differs(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown is what the operator then does."""
    edited = manifest(batching={"maxNumSeqs": 16})
    _, service = await told(capsys, edited)
    shown = [each["manifest"] for each in service["objects"] if each["action"] in ("create", "change")]
    api.world.obj["spec"] = new(edited, "team-a")["spec"]
    api.world.obj["metadata"]["generation"] += 1
    decision = api.world.decide()
    assert shown == json.loads(json.dumps([apply.manifest for apply in decision.apply]))
    api.world.settle()
    api.world.roll_out()
    api.world.settle()
    assert (await diff(capsys, edited))[0] == ExitCode.DONE


@pytest.mark.parametrize(("policy", "is_held"), [("Enforce", True), ("Warn", False)])
@pytest.mark.parametrize("is_live", [True, False])
async def test_an_edit_that_does_not_fit_is_no_pass(
    api: Api, policy: str, is_held: bool, is_live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_live:
        api.world.obj, api.world.children, api.world.pods = {}, {}, {}
    large = {"numHiddenLayers": 200, "hiddenSize": 16384, "numAttentionHeads": 128, "vocabSize": 128256,
             "intermediateSize": 53248}  # fmt: skip
    edited = manifest(
        accelerator={"type": "nvidia", "products": ["NVIDIA-L4"]},
        model={"uri": "file:///models/tiny", "architecture": large},
        fitPolicy=policy,
    )
    code, service = await told(capsys, edited)
    assert code == ExitCode.DIFFERS
    said = "the edit is held until it is changed: DoesNotFit. " if is_live else "(DoesNotFit)"
    assert (said in service["restart"]["reason"]) is is_held
    assert ("Deployment" in actions(service)) is not is_held


async def test_a_service_that_is_not_there_is_created(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.world.obj, api.world.children, api.world.pods = {}, {}, {}
    code, service = await told(capsys, manifest())
    assert code == ExitCode.DIFFERS
    assert set(actions(service).values()) == {"create"}
    assert service["restart"] == {"pods": 0, "reason": "no restart: nothing runs yet, and 2 pods are started"}
    assert service["notes"][0] == "LLMService x does not exist yet"
    (deployment,) = (each for each in service["objects"] if each["kind"] == "Deployment")
    assert deployment["diff"].startswith("--- /dev/null\n+++ decided/Deployment/x\n")


async def test_somebody_elses_deployment_is_named(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.world.obj, api.world.pods = {}, {}
    api.world.children = {("Deployment", "x"): api.world.deployment}
    api.world.deployment["metadata"] |= {"labels": {}, "ownerReferences": []}
    code, service = await told(capsys, manifest())
    (accepted,) = (each for each in service["conditions"] if each["type"] == "Accepted")
    assert (code, accepted["reason"]) == (ExitCode.BAD_INPUT, "NameConflict")


async def test_what_others_changed_is_put_back(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    server = api.world.deployment["spec"]["template"]["spec"]["containers"][0]
    server["env"].append({"name": "ADDED", "value": "1"})
    server["image"] = "vllm:other"
    fields: dict[str, Any] = {"f:spec": {"f:template": {"f:spec": {"f:containers": {
        'k:{"name":"server"}': {"f:env": {'k:{"name":"ADDED"}': {".": {}, "f:name": {}, "f:value": {}}}}
    }}}}}  # fmt: skip
    api.world.deployment["metadata"]["managedFields"].append(
        {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": fields}
    )
    code, out = await diff(capsys, manifest())
    assert code == ExitCode.DIFFERS
    assert f"RESTART: 2 pods are replaced by the same revision: image: vllm:other -> {IMAGE}" in out
    assert "-        - name: ADDED" in out


def owned_by(manager: str, operation: str, *items: str) -> dict[str, Any]:
    """An entry of managedFields: fields of the container `server`."""
    server: dict[str, Any] = {f"f:{item}": {} for item in items}
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"server"}': server}}}}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


@pytest.mark.parametrize(
    ("owners", "applied", "code", "first"),
    [
        pytest.param([owned_by("llmservice-operator", "Apply", "image")], None, 0, "no restart", id="a webhook"),
        pytest.param([owned_by("llmservice-operator", "Apply", "args"), owned_by("kubectl-edit", "Update", "image")],
                     None, 1, "RESTART: 2 pods are replaced by the same revision", id="somebody"),
        pytest.param([owned_by("llmservice-operator", "Apply", "image")], "of an earlier release",
                     1, "RESTART: 2 pods are replaced by the same revision", id="not what was applied"),
    ],
)  # fmt: skip
async def test_what_a_webhook_made_of_an_apply_is_no_difference(
    api: Api,
    owners: list[dict[str, Any]],
    applied: str | None,
    code: int,
    first: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The operator remembers what came of its apply, and leaves it."""
    metadata = api.world.deployment["metadata"]
    api.world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/vllm:v0.32.0"
    metadata["managedFields"] = owners
    if applied is not None:
        metadata["annotations"]["llmservice.dev/applied-hash"] = applied
        owners[0]["fieldsV1"]["f:metadata"] = {"f:annotations": {"f:llmservice.dev/applied-hash": {}}}
    ended, service = await told(capsys, manifest())
    assert ended == code
    assert service["restart"]["reason"].startswith(first)
    noted = any("Deployment x stays: a webhook made it differ" in note for note in service["notes"])
    assert noted is (code == 0)
    assert ("Deployment" in actions(service)) is (code == 1)


async def test_a_field_that_is_no_longer_asked_for_is_taken_away(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = api.world.deployment
    deployment["spec"]["minReadySeconds"] = 5
    (ours,) = deployment["metadata"]["managedFields"]
    ours["fieldsV1"] = {"f:spec": {"f:minReadySeconds": {}, "f:replicas": {}}}
    deployment["metadata"]["annotations"]["llmservice.dev/applied-hash"] = "of an earlier release"
    code, out = await diff(capsys, manifest())
    assert code == ExitCode.DIFFERS
    assert "-  minReadySeconds: 5" in out.splitlines()
    assert "no restart: the pod template stays" in out


async def test_a_default_of_the_api_server_is_no_difference(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    spec = api.world.deployment["spec"]["template"]["spec"]
    spec |= {"restartPolicy": "Always", "schedulerName": "default-scheduler"}
    spec["containers"][0]["resources"]["requests"]["memory"] = "3072Mi"
    _, out = await diff(capsys, manifest(scaling={"replicas": 3}))
    changed = [line for line in out.splitlines() if line.startswith(("+ ", "- "))]
    assert changed == ["-  replicas: 2", "+  replicas: 3"]


async def test_replicas_that_the_manifest_does_not_name_stay(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    given = manifest()
    del given["spec"]["scaling"]
    code, service = await told(capsys, given)
    assert code == ExitCode.DONE
    assert service["notes"][0].startswith("spec.scaling.replicas stays 2 as in the cluster")


async def test_rules_about_changes_are_evaluated(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.world.obj["spec"]["model"] = {"uri": "hf://a/b", "cache": {"size": "10Gi"}}
    options = options_of(manifest(model={"uri": "hf://a/b", "cache": {"size": "5Gi"}}))
    assert await options.run(options) == ExitCode.BAD_INPUT
    assert "spec.model.cache.size: a claim cannot shrink" in capsys.readouterr().err


async def test_a_missing_right_on_nodes_is_the_users(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.denied = {"Node"}
    _, service = await told(capsys, manifest(accelerator={"type": "nvidia"}, fitPolicy="Warn", model={
        "uri": "file:///models/tiny", "architecture": {"numHiddenLayers": 2, "hiddenSize": 64, "numAttentionHeads": 2,
                                                       "vocabSize": 64, "intermediateSize": 64}
    }))  # fmt: skip
    (fits,) = (each for each in service["conditions"] if each["type"] == "Fits")
    assert "you have no right to list nodes" in fits["message"]
    assert "operator" not in fits["message"]


async def test_a_cluster_that_cannot_be_asked_is_no_difference(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.denied = {"Deployment"}
    with pytest.raises(CliError, match="deployments") as error:
        await diff(capsys, manifest())
    assert error.value.exit_code == ExitCode.NOT_ASKED
    api.denied, api.missing = set(), {"LLMService"}
    with pytest.raises(CliError, match="install the operator") as error:
        await diff(capsys, manifest())
    assert error.value.exit_code == ExitCode.NOT_ASKED
    monkeypatch.setenv("KUBECONFIG", "/no/such/kubeconfig")
    with pytest.raises(CliError) as error:
        await diff(capsys, manifest())
    assert error.value.exit_code == ExitCode.NOT_ASKED


async def test_an_unreadable_object_of_others_is_left_out(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"kind": "Pod", "metadata": {"name": "odd", "labels": {"llmservice.dev/service": "x"}}, "spec": 7}
    api.objects.append(odd)
    code, service = await told(capsys, manifest())
    assert code == ExitCode.DONE
    assert any("left out: Pod odd cannot be read" in note for note in service["notes"])


async def test_the_list_of_adapters_is_compared_where_it_may_be_read(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    given = manifest(lora={"maxLoras": 1}, adapters=[{"name": "a", "uri": "hf://a/b"}])
    api.world.obj["spec"] = new(given, "team-a")["spec"]
    api.world.settle()
    api.world.roll_out()
    api.world.settle()
    given["spec"]["adapters"].append({"name": "b", "uri": "hf://b/b"})
    _, out = await diff(capsys, given)
    assert "--- live/ConfigMap/x-adapters" in out
    api.denied = {"ConfigMap"}
    _, out = await diff(capsys, given)
    assert "ConfigMap x-adapters is not compared: you may not read it" in out
    assert [line.split()[0] for line in out.splitlines() if "ConfigMap x-adapters  " in line] == ["apply"]


async def test_secrets_that_change_are_not_shown(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = ([{"name": "TEAM_TOKEN", "value": f"{letter}123456789"}] for letter in "ab")
    api.world.obj["spec"] = new(manifest(runtime={"image": IMAGE, "env": one}), "team-a")["spec"]
    api.world.settle()
    api.world.roll_out()
    api.world.settle()
    code, out = await diff(capsys, manifest(runtime={"image": IMAGE, "env": other}))
    assert code == ExitCode.DIFFERS
    assert "123456789" not in out
    assert "RESTART" in out


async def test_colours_are_for_terminals(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plain = await diff(capsys, manifest(batching={"maxNumSeqs": 16}))
    monkeypatch.setattr("llmservice_cli.render.output.is_styled", lambda: True)
    _, coloured = await diff(capsys, manifest(batching={"maxNumSeqs": 16}))
    assert "\033[" not in plain
    assert "\033[32m+        - '16'\033[0m" in coloured


async def test_a_file_without_a_service_is_bad_input_and_so_are_two_namespaces(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput):
        await diff(capsys, manifest() | {"kind": "Service"})
    assert (await diff(capsys, manifest(), "-n", "team-b"))[0] == ExitCode.BAD_INPUT
