"""`llmservice diff`: what the operator would change in a cluster, what restarts, and whose settings count."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.constants import CHILD_KINDS
from llmservice_cli.diff import command
from llmservice_cli.errors import BadInput, CliError, ExitCode
from llmservice_cli.render.decided import new
from llmservice_operator.manifests.inspection import inspection_key

from tests.support.http_servers import cluster
from tests.unit.cli.diff_world import (
    IMAGE,
    Cluster,
    Diff,
    actions,
    condition,
    manifest,
    operator_binding,
    operator_settings,
    rolled_out,
)
from tests.unit.cli_world import LLAMA_8B, Command

DONE, DIFFERS, BAD_INPUT = ExitCode.DONE, ExitCode.DIFFERS, ExitCode.BAD_INPUT
INSPECTED_FIRST = "no restart yet (InspectingModel): the model is inspected first, and --config shows what follows"
REFUSED = "no restart, and what runs stays as it is: the spec is refused"


@pytest.fixture
async def diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> AsyncIterator[Diff]:
    made = rolled_out()
    async with cluster(made.answer, tmp_path, monkeypatch):
        yield Diff(made, llmservice)


@pytest.fixture
def api(diff: Diff) -> Cluster:
    return diff.api


async def test_what_is_applied_already_does_not_differ(diff: Diff) -> None:
    ran = await diff(manifest())
    assert ran.code == DONE
    assert ran.out.splitlines()[0] == "x in namespace team-a: no restart"
    unchanged = [line.split()[1] for line in ran.out.splitlines() if line.split()[0] == "unchanged"]
    assert unchanged == ["Service", "Deployment", "PodDisruptionBudget"]
    assert "---" not in ran.out
    assert "settings: ConfigMap system/operator" in ran.out


async def test_a_child_whose_crd_is_not_installed_is_not_made_and_the_status_names_it(
    diff: Diff, api: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "OPTIONAL", tuple(child.resource for child in CHILD_KINDS))
    del api.world.children["PodDisruptionBudget", "x"]
    api.refused = {"poddisruptionbudgets": 404}
    ran = await diff(manifest(), "-o", "json")
    assert ran.code == DONE
    assert "poddisruptionbudgets.policy cannot be listed" in ran.out


async def test_a_service_of_single_pods_needs_no_right_on_what_groups_are_made_of(diff: Diff, api: Cluster) -> None:
    api.refused = {"leaderworkersets": 403, "networkpolicies": 403}
    ran = await diff(manifest(), "-o", "json")
    assert (ran.code, ran.err) == (DONE, "")


async def test_an_edit_of_the_engine_names_the_flag_and_the_pods_that_restart(
    diff: Diff, api: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await diff(manifest(batching={"maxNumSeqs": 16}))
    assert ran.code == DIFFERS
    lines = ran.out.splitlines()
    assert "RESTART: 2 pods are replaced by revision " in lines[0]
    assert "--max-num-seqs: 8 -> 16" in lines[0]
    assert api.world.revision() not in lines[0]
    assert {"--- live/Deployment/x", "-        - '8'", "+        - '16'"} <= set(lines)
    assert not any("live/Service" in line for line in lines)
    assert "\033[" not in ran.out
    monkeypatch.setattr("llmservice_cli.render.preview.is_styled", lambda: True)
    assert "\033[32m+        - '16'\033[0m" in (await diff(manifest(batching={"maxNumSeqs": 16}))).out


TEMPLATE_STAYS = "no restart: the pod template stays; replicas: 2 -> {}"
EDITS: dict[str, tuple[dict[str, Any], int, dict[str, str], str]] = {
    "more replicas": ({"scaling": {"replicas": 3}}, 1, {"Deployment": "change"}, TEMPLATE_STAYS.format(3)),
    "one replica": (
        {"scaling": {"replicas": 1}},
        *(1, {"Deployment": "change", "PodDisruptionBudget": "delete"}, TEMPLATE_STAYS.format(1)),
    ),
    "another port": ({"endpoint": {"port": 8080}}, 1, {"Service": "change"}, "no restart"),
    "paused": ({"paused": True, "batching": {"maxNumSeqs": 16}}, 0, {}, "no restart (Paused)"),
    "a model to be inspected first": ({"model": {"uri": "hf://a/b"}}, 1, {"Job": "create"}, INSPECTED_FIRST),
    "refused by the operator": ({"runtime": {}}, 2, {}, REFUSED),
    "no such revision": ({"rollout": {"pinnedRevision": "0123456789"}}, 2, {}, REFUSED),
}


@pytest.mark.parametrize(("edit", "code", "changed", "restart"), EDITS.values(), ids=EDITS)
async def test_only_what_pods_are_made_of_restarts_them(
    diff: Diff, edit: dict[str, Any], code: int, changed: dict[str, str], restart: str
) -> None:
    ended, service = await diff.service(manifest(**edit))
    assert (ended, actions(service), service["restart"]) == (code, changed, {"pods": 0, "reason": restart})


@pytest.mark.parametrize("is_known", [True, False], ids=["inspected", "given by --config"])
async def test_the_facts_of_the_model_are_those_of_the_inspection(
    diff: Diff, api: Cluster, is_known: bool, llmservice: Command
) -> None:
    edited = manifest(model={"uri": "hf://a/b"}, fitPolicy="Warn")
    words: tuple[str, ...] = ("--config", llmservice.config())
    if is_known:
        api.world.obj["spec"] = new(edited, "team-a")["spec"]
        found = {"config": json.dumps(LLAMA_8B), "inspection": inspection_key(api.world.service().spec)}
        api.world.obj["status"]["model"] = found
        words = ()
    code, service = await diff.service(edited, *words)
    assert (code, actions(service)) == (DIFFERS, {"ControllerRevision": "create", "Deployment": "change"})
    assert "--model: /models/tiny -> /llmservice/fetch/artifacts/model" in service["restart"]["reason"]


async def test_a_gap_that_the_operator_reports_before_it_acts_is_a_restart(diff: Diff, api: Cluster) -> None:
    api.world.edit(scaling={"replicas": 1})
    api.roll_out()
    (pod,) = api.world.pods.values()
    pod["spec"] |= {"containers": api.world.deployment["spec"]["template"]["spec"]["containers"]}
    allocatable = {"cpu": "1", "memory": "4Gi", "pods": "9"}
    api.more.append({"kind": "Node", "metadata": {"name": "node-a"}, "status": {"allocatable": allocatable}})
    _, service = await diff.service(manifest(scaling={"replicas": 1}, batching={"maxNumSeqs": 16}))
    assert (actions(service)["Deployment"], service["restart"]["pods"]) == ("change", 1)
    assert "strategy Replace" in service["restart"]["reason"]
    assert "There is one replica" in service["restart"]["reason"]


async def test_what_is_shown_is_what_the_operator_then_does(diff: Diff, api: Cluster) -> None:
    edited = manifest(batching={"maxNumSeqs": 16})
    _, service = await diff.service(edited)
    shown = [each["manifest"] for each in service["objects"] if each["action"] in ("create", "change")]
    api.world.edit(**new(edited, "team-a")["spec"])
    assert shown == json.loads(json.dumps([apply.manifest for apply in api.world.decide().apply]))
    api.roll_out()
    assert (await diff(edited)).code == DONE


@pytest.mark.parametrize(("policy", "is_held"), [("Enforce", True), ("Warn", False)])
@pytest.mark.parametrize("is_live", [True, False])
async def test_an_edit_that_does_not_fit_is_no_pass(
    diff: Diff, api: Cluster, policy: str, is_held: bool, is_live: bool
) -> None:
    if not is_live:
        api.clear()
    large = {"numHiddenLayers": 200, "hiddenSize": 16384, "numAttentionHeads": 128, "vocabSize": 128256}
    model = {"uri": "file:///models/tiny", "architecture": large | {"intermediateSize": 53248}}
    l4 = {"type": "nvidia", "products": ["NVIDIA-L4"]}
    code, service = await diff.service(manifest(accelerator=l4, model=model, fitPolicy=policy))
    assert code == DIFFERS
    held = "the edit is held until it is changed: DoesNotFit. " if is_live else "(DoesNotFit)"
    assert (held in service["restart"]["reason"]) is is_held
    assert ("Deployment" in actions(service)) is not is_held


async def test_a_service_that_does_not_exist_is_created(diff: Diff, api: Cluster) -> None:
    api.clear()
    code, service = await diff.service(manifest())
    assert (code, set(actions(service).values())) == (DIFFERS, {"create"})
    assert service["restart"] == {"pods": 0, "reason": "no restart: nothing runs yet, and 2 pods are started"}
    assert service["notes"][0] == "LLMService x does not exist yet"
    (deployment,) = (each for each in service["objects"] if each["kind"] == "Deployment")
    assert deployment["diff"].startswith("--- /dev/null\n+++ decided/Deployment/x\n")


async def test_another_owners_deployment_is_a_conflict(diff: Diff, api: Cluster) -> None:
    deployment = api.world.deployment
    api.clear()
    api.world.children = {("Deployment", "x"): deployment}
    deployment["metadata"] |= {"labels": {}, "ownerReferences": []}
    code, service = await diff.service(manifest())
    assert (code, condition(service, "Accepted")["reason"]) == (BAD_INPUT, "NameConflict")


def owned_by(manager: str, operation: str, server: dict[str, Any]) -> dict[str, Any]:
    """An entry of managedFields: fields of the container `server`."""
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"server"}': server}}}}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


async def test_what_others_changed_is_put_back(diff: Diff, api: Cluster) -> None:
    server = api.world.deployment["spec"]["template"]["spec"]["containers"][0]
    server["env"].append({"name": "ADDED", "value": "1"})
    server["image"] = "vllm:other"
    added: dict[str, Any] = {"f:env": {'k:{"name":"ADDED"}': {".": {}, "f:name": {}, "f:value": {}}}}
    api.world.deployment["metadata"]["managedFields"].append(owned_by("kubectl-edit", "Update", added))
    ran = await diff(manifest())
    assert ran.code == DIFFERS
    assert f"RESTART: 2 pods are replaced by the same revision: image: vllm:other -> {IMAGE}" in ran.out
    assert "-        - name: ADDED" in ran.out


OURS = ("llmservice-operator", "Apply")
REWRITTEN: dict[str, tuple[list[dict[str, Any]], str | None, int]] = {
    "a webhook": ([owned_by(*OURS, {"f:image": {}})], None, DONE),
    "another manager": (
        [owned_by(*OURS, {"f:args": {}}), owned_by("kubectl-edit", "Update", {"f:image": {}})], None, DIFFERS,
    ),
    "not what was applied": ([owned_by(*OURS, {"f:image": {}})], "of an earlier release", DIFFERS),
}  # fmt: skip


@pytest.mark.parametrize(("owners", "applied", "code"), REWRITTEN.values(), ids=REWRITTEN)
async def test_what_a_webhook_made_of_an_apply_is_no_difference(
    diff: Diff, api: Cluster, owners: list[dict[str, Any]], applied: str | None, code: int
) -> None:
    """The operator remembers what came of its apply, and leaves it."""
    metadata = api.world.deployment["metadata"]
    api.world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/vllm:v0.32.0"
    metadata["managedFields"] = owners
    if applied is not None:
        metadata["annotations"]["llmservice.dev/applied-hash"] = applied
        owners[0]["fieldsV1"]["f:metadata"] = {"f:annotations": {"f:llmservice.dev/applied-hash": {}}}
    ended, service = await diff.service(manifest())
    restart = "RESTART: 2 pods are replaced by the same revision" if code else "no restart"
    assert (ended, service["restart"]["reason"].partition(": image")[0]) == (code, restart)
    noted = any("Deployment x stays: a webhook made it differ" in note for note in service["notes"])
    assert (noted, "Deployment" in actions(service)) == (code == DONE, code == DIFFERS)


async def test_a_field_that_is_no_longer_applied_is_removed(diff: Diff, api: Cluster) -> None:
    deployment = api.world.deployment
    deployment["spec"]["minReadySeconds"] = 5
    (ours,) = deployment["metadata"]["managedFields"]
    ours["fieldsV1"] = {"f:spec": {"f:minReadySeconds": {}, "f:replicas": {}}}
    deployment["metadata"]["annotations"]["llmservice.dev/applied-hash"] = "of an earlier release"
    ran = await diff(manifest())
    assert ran.code == DIFFERS
    assert "-  minReadySeconds: 5" in ran.out.splitlines()
    assert "no restart: the pod template stays" in ran.out


async def test_a_default_of_the_api_server_is_no_difference(diff: Diff, api: Cluster) -> None:
    spec = api.world.deployment["spec"]["template"]["spec"]
    spec |= {"restartPolicy": "Always", "schedulerName": "default-scheduler"}
    spec["containers"][0]["resources"]["requests"]["memory"] = "3072Mi"
    ran = await diff(manifest(scaling={"replicas": 3}))
    changed = [line for line in ran.out.splitlines() if line.startswith(("+ ", "- "))]
    assert changed == ["-  replicas: 2", "+  replicas: 3"]


async def test_a_scale_down_of_pods_that_answer_asks_none_of_them(diff: Diff, api: Cluster) -> None:
    for number, pod in enumerate(api.world.pods.values()):
        pod["status"]["podIP"] = f"127.0.0.{number + 2}"
    code, service = await diff.service(manifest(scaling={"replicas": 1}))
    assert (code, actions(service)["Deployment"]) == (DIFFERS, "change")


async def test_replicas_that_the_manifest_does_not_name_stay(diff: Diff) -> None:
    given = manifest()
    del given["spec"]["scaling"]
    code, service = await diff.service(given)
    assert (code, service["notes"][0].partition(" as in")[0]) == (DONE, "spec.scaling.replicas stays 2")


async def test_rules_about_changes_are_evaluated(diff: Diff, api: Cluster) -> None:
    api.world.obj["spec"]["model"] = {"uri": "hf://a/b", "cache": {"size": "10Gi"}}
    ran = await diff(manifest(model={"uri": "hf://a/b", "cache": {"size": "5Gi"}}))
    assert ran.code == BAD_INPUT
    assert "spec.model.cache.size: a claim cannot shrink" in ran.err


async def test_a_missing_right_on_nodes_is_the_users(diff: Diff, api: Cluster) -> None:
    api.refused = {"nodes": 403}
    small = {"numHiddenLayers": 2, "hiddenSize": 64, "numAttentionHeads": 2, "vocabSize": 64, "intermediateSize": 64}
    model = {"uri": "file:///models/tiny", "architecture": small}
    _, service = await diff.service(manifest(accelerator={"type": "nvidia"}, fitPolicy="Warn", model=model))
    message = condition(service, "Fits")["message"]
    assert "you have no right to list nodes" in message
    assert "operator" not in message


@pytest.mark.parametrize(
    ("refused", "words", "message"),
    [
        pytest.param({"deployments": 403}, (), "deployments", id="a right"),
        pytest.param({"llmservices": 404}, (), "install the operator", id="no CRD"),
        pytest.param({}, ("--kubeconfig", "/no/such/kubeconfig"), "kubeconfig", id="no kubeconfig"),
    ],
)
async def test_a_cluster_that_cannot_be_read_is_no_difference(
    diff: Diff, api: Cluster, refused: dict[str, int], words: tuple[str, ...], message: str
) -> None:
    api.refused = refused
    with pytest.raises(CliError, match=message) as error:
        await diff(manifest(), *words)
    assert error.value.exit_code == ExitCode.NOT_ASKED


async def test_an_unreadable_object_of_others_is_left_out(diff: Diff, api: Cluster) -> None:
    labels = {"llmservice.dev/service": "x"}
    api.more.append({"kind": "Pod", "metadata": {"name": "odd", "labels": labels}, "spec": 7})
    code, service = await diff.service(manifest())
    assert code == DONE
    assert any("left out: Pod odd cannot be read" in note for note in service["notes"])


async def test_the_list_of_adapters_is_compared_where_it_may_be_read(diff: Diff, api: Cluster) -> None:
    given = manifest(lora={"maxLoras": 1}, adapters=[{"name": "a", "uri": "hf://a/b"}])
    api.store(given)
    given["spec"]["adapters"].append({"name": "b", "uri": "hf://b/b"})
    assert "--- live/ConfigMap/x-adapters" in (await diff(given)).out
    api.refused = {"configmaps": 403}
    out = (await diff(given)).out
    assert "ConfigMap x-adapters is not compared: you may not read it" in out
    assert [line.split()[0] for line in out.splitlines() if "ConfigMap x-adapters  " in line] == ["apply"]


async def test_secrets_that_change_are_not_shown(diff: Diff, api: Cluster) -> None:
    one, other = ([{"name": "TEAM_TOKEN", "value": f"{letter}123456789"}] for letter in "ab")
    api.store(manifest(runtime={"image": IMAGE, "env": one}))
    ran = await diff(manifest(runtime={"image": IMAGE, "env": other}))
    assert ran.code == DIFFERS
    assert "123456789" not in ran.out
    assert "RESTART" in ran.out


async def test_a_file_without_a_service_is_bad_input_and_so_are_two_namespaces(diff: Diff) -> None:
    with pytest.raises(BadInput):
        await diff(manifest() | {"kind": "Service"})
    assert (await diff(manifest(), "-n", "team-b")).code == BAD_INPUT


NOT_FOUND, FOUND = "no operator's settings are found", "settings: ConfigMap system/operator"
SETTINGS_FROM = [
    ([], {}, NOT_FOUND),
    ([operator_settings(namespaces=["other"])], {}, NOT_FOUND),
    ([operator_settings(), operator_settings()], {}, "2 operators watch this namespace"),
    ([operator_settings(services={"nonsense": 1})], {}, "cannot be read: unknown settings: nonsense"),
    ([operator_settings(namespaces=["team-a"])], {}, FOUND),
    ([operator_settings()], {"configmaps": 403}, "you may not read the operator's"),
    ([operator_settings(namespaces=5)], {}, NOT_FOUND),
    ([operator_settings(namespaces="team-a")], {}, NOT_FOUND),
    ([operator_settings(services={"imagePullSecrets": 5})], {}, "imagePullSecrets: give a list"),
    ([operator_settings(services={5: "x", "a\033": "x"})], {}, "a key is of type int"),
    ([operator_settings(services={"a\033": "x"})], {}, "unknown settings: a?"),
    ([operator_settings(comment="x" * 100_000)], {}, NOT_FOUND),
    ([operator_settings("team-b"), operator_settings(), operator_binding()], {}, FOUND),
    ([operator_settings("team-b"), operator_binding()], {}, NOT_FOUND),
    ([operator_settings(), operator_binding()], {"clusterrolebindings": 403}, "operator (no ClusterRoleBinding"),
]


@pytest.mark.parametrize(("objects", "refused", "note"), SETTINGS_FROM)
async def test_where_the_operators_settings_are_from_is_noted(
    diff: Diff, api: Cluster, objects: list[dict[str, Any]], refused: dict[str, int], note: str
) -> None:
    """Anybody may have written the ConfigMaps."""
    api.more, api.refused = objects, refused
    code, service = await diff.service(manifest())
    assert note in service["notes"][0]
    assert code == DONE, "the recorded template stands, whatever the settings"
