"""Where a model, a draft model and adapters come from, and what that makes of the pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_api.service import parse_spec
from llmservice_operator.manifests.sources import adapter_path, fetched, places

from tests.unit.operator.test_build_deployment import CPU, env, env_of, fetcher, mounts, render, server, table, volumes

Json = dict[str, Any]
SOURCES = """
hub: [hf://Qwen/Qwen2.5-7B@abc, /llmservice/fetch/artifacts/model, {models: {emptyDir: {}}}]
bucket: [s3://bucket/a/b, /llmservice/fetch/artifacts/model, {models: {emptyDir: {}}}]
claim:
- pvc://claim/dir/model
- /llmservice/source/dir/model
- {source: {persistentVolumeClaim: {claimName: claim, readOnly: true}}}
image:
- image://registry.example:5000/models/qwen:v1#a/b
- /llmservice/source/a/b
- {source: {image: {reference: "registry.example:5000/models/qwen:v1"}}}
its root: [image://models, /llmservice/source, {source: {image: {reference: models}}}]
in the runtime's image: [file:///models/m, /models/m, {}]
"""
OFFLINE = """
nothing is fetched: [{model: {uri: pvc://claim}}, "1"]
it is in the image: [{model: {uri: file:///m}}, "1"]
it is fetched, and the supervisor tells vLLM: [{model: {uri: hf://a/b}}, null]
an adapter may be fetched: [{model: {uri: file:///m}, lora: {}}, null]
a model's own code: [{model: {uri: hf://a/b, trustRemoteCode: true}}, "0"]
from no hub: [{model: {uri: s3://bucket, trustRemoteCode: true}}, null]
"""
DRAFTS = """
hub: [hf://c/d, /llmservice/fetch/artifacts/draft, [model=hf://a/b, draft=hf://c/d], null]
claim:
- pvc://claim/d
- /llmservice/draft/d
- [model=hf://a/b]
- {persistentVolumeClaim: {claimName: claim, readOnly: true}}
image: [image://draft:v1, /llmservice/draft, [model=hf://a/b], {image: {reference: "draft:v1"}}]
in the runtime's image: [file:///draft, /draft, [model=hf://a/b], null]
"""


def flag(template: Json, name: str) -> str | None:
    args = server(template)["args"]
    return args[args.index(name) + 1] if name in args else None


def options(template: Json, name: str) -> list[str]:
    """Values of one of the supervisor's options."""
    args = server(template)["args"]
    return [arg.removeprefix(f"{name}=") for arg in args[: args.index("--")] if arg.startswith(f"{name}=")]


@pytest.mark.parametrize(("uri", "path", "mounted"), table(SOURCES))
def test_where_the_model_comes_from(uri: str, path: str, mounted: Json) -> None:
    template = render(model={"uri": uri})
    assert flag(template, "--model") == path
    assert options(template, "--fetch") == ([f"model={uri}"] if "models" in mounted else [])
    found = {name: volume for name, volume in volumes(template).items() if name in ("models", "source")}
    assert found == {name: {"name": name, **source} for name, source in mounted.items()}
    assert all(mounts(template)[name]["readOnly"] for name in mounted)


@pytest.mark.parametrize(("sections", "offline"), table(OFFLINE))
def test_vllm_needs_no_hub(sections: Json, offline: str | None) -> None:
    variables = env(render(**sections))
    assert (variables.get("HF_HUB_OFFLINE"), variables.get("TRANSFORMERS_OFFLINE")) == (offline, offline)
    # The cache of models may be shared, and is no place for what each vLLM writes for itself.
    assert variables["HF_HOME"].startswith("/llmservice/cache/")


@pytest.mark.parametrize(("policy", "expected"), [("Never", {"pullPolicy": "Never"}), (None, {})])
def test_images_of_models_are_pulled_as_the_servers_is(policy: str | None, expected: Json) -> None:
    runtime = {} if policy is None else {"imagePullPolicy": policy}
    template = render(model={"uri": "image://models:v1"}, runtime=runtime)
    assert volumes(template)["source"]["image"] == {"reference": "models:v1"} | expected


@pytest.mark.parametrize(("uri", "path", "fetch", "source"), table(DRAFTS))
def test_where_the_draft_model_comes_from(uri: str, path: str, fetch: list[str], source: Json | None) -> None:
    speculation = {"method": "draftModel", "model": {"uri": uri}, "numSpeculativeTokens": 3}
    template = render(model={"uri": "hf://a/b"}, speculativeDecoding=speculation)
    said = json.loads(flag(template, "--speculative-config") or "")
    assert said == {"method": "draft_model", "model": path, "num_speculative_tokens": 3}
    assert options(template, "--fetch") == fetch
    assert volumes(template).get("draft") == (None if source is None else {"name": "draft", **source})


def test_a_model_that_is_not_fetched_still_has_room_for_a_draft_that_is() -> None:
    speculation = {"method": "eagle3", "model": {"uri": "hf://c/d"}, "numSpeculativeTokens": 3}
    template = render(model={"uri": "file:///m"}, speculativeDecoding=speculation)
    assert mounts(template)["models"]["mountPath"] == "/llmservice/models"
    assert options(template, "--fetch") == ["draft=hf://c/d"]


def test_ngrams_need_no_model() -> None:
    template = render(speculativeDecoding={"method": "ngram", "numSpeculativeTokens": 3})
    assert json.loads(flag(template, "--speculative-config") or "") == {"method": "ngram", "num_speculative_tokens": 3}


def adapters(**uris: str) -> list[Json]:
    return [{"name": name, "uri": uri} for name, uri in uris.items()]


def test_what_several_of_them_share_is_mounted_once() -> None:
    spec = parse_spec(
        {
            "model": {"uri": "pvc://claim/m"},
            "speculativeDecoding": {
                "method": "draftModel", "model": {"uri": "pvc://claim/d"}, "numSpeculativeTokens": 1,
            },
            "adapters": adapters(a="pvc://claim/a", b="pvc://other/b", c="pvc://other/c", d="image://d:1", e="hf://e/e"),
        }
    )  # fmt: skip
    claims = [(at.kind, at.name) for at in places(spec)]
    assert claims == [("claim", "claim"), ("claim", "other"), ("image", "d:1")]
    paths = [adapter_path(spec, adapter) for adapter in spec.adapters]
    assert paths[0] == "/llmservice/source/a"
    assert paths[1] is not None
    folder = paths[1].removesuffix("/b")
    assert folder.startswith("/llmservice/adapter-sources/")
    assert paths[2] == f"{folder}/c"
    assert paths[3] not in (None, folder)
    assert paths[4] is None
    assert fetched(spec) == {}


def test_the_order_of_adapters_moves_nothing() -> None:
    some = adapters(a="pvc://a", b="pvc://b", c="image://c")
    assert render(adapters=some) == render(adapters=some[::-1])


def test_adapters_have_a_list_a_place_and_a_closed_way_in() -> None:
    template = render(model={"uri": "file:///m"}, adapters=adapters(a="hf://a/b"))
    assert "--enable-lora" in server(template)["args"]
    assert options(template, "--adapters-file") == ["/llmservice/adapters/adapters.json"]
    assert volumes(template)["adapters"]["configMap"] == {"name": "x-adapters", "optional": True}
    assert mounts(template)["adapters"] == {"name": "adapters", "mountPath": "/llmservice/adapters", "readOnly": True}
    assert volumes(template)["models"] == {"name": "models", "emptyDir": {}}
    assert env(template)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    # Adapters are no matter of the pod: the supervisor reads them in the list.
    assert template == render(model={"uri": "file:///m"}, lora={})
    without = render(model={"uri": "file:///m"})
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in env(without)
    assert not {"adapters", "models"} & set(volumes(without))


def test_the_chat_template_is_one_file() -> None:
    reference = {"name": "templates", "key": "qwen.jinja"}
    template = render(model={"uri": "hf://a/b", "chatTemplate": {"configMapKeyRef": reference}})
    assert flag(template, "--chat-template") == "/llmservice/chat-template/template.jinja"
    items = [{"key": "qwen.jinja", "path": "template.jinja"}]
    assert volumes(template)["chat-template"]["configMap"] == {"name": "templates", "items": items}
    assert mounts(template)["chat-template"]["mountPath"] == "/llmservice/chat-template"


def of_key(name: str, key: str, *, optional: bool = False) -> Json:
    return {"secretKeyRef": {"name": name, "key": key} | ({"optional": True} if optional else {})}


AZURE_KEYS = ("STORAGE_ACCOUNT_KEY", "STORAGE_SAS_TOKEN", "TENANT_ID", "CLIENT_ID", "CLIENT_SECRET")
BUCKETS: list[tuple[Json, Json, str, Json]] = [
    (
        {"uri": "s3://bucket/a"},
        {"s3": {"endpoint": "https://s3:9000", "region": "eu-1", "credentialsSecretRef": {"name": "k"}}},
        "AWS_",
        {"AWS_ENDPOINT_URL_S3": "https://s3:9000", "AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "eu-1"}
        | {key: of_key("k", key) for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        | {"AWS_SESSION_TOKEN": of_key("k", "AWS_SESSION_TOKEN", optional=True)},
    ),
    (
        {"uri": "gs://bucket/a"},
        {"gcs": {"endpoint": "https://gcs", "credentialsSecretRef": {"name": "k", "key": "reader.json"}}},
        "GOOGLE_",
        {"GOOGLE_BASE_URL": "https://gcs", "GOOGLE_SERVICE_ACCOUNT_KEY": of_key("k", "reader.json")},
    ),
    (
        {"uri": "az://bucket/a"},
        {"azure": {"account": "weights", "endpoint": "https://az", "credentialsSecretRef": {"name": "k"}}},
        "AZURE_",
        {"AZURE_STORAGE_ACCOUNT_NAME": "weights", "AZURE_STORAGE_ENDPOINT": "https://az"}
        | {f"AZURE_{key}": of_key("k", f"AZURE_{key}", optional=True) for key in AZURE_KEYS},
    ),
]


@pytest.mark.parametrize(("model", "access", "prefix", "expected"), BUCKETS, ids=["s3", "gs", "az"])
def test_buckets_are_reached_by_variables_that_every_client_knows(
    model: Json, access: Json, prefix: str, expected: Json
) -> None:
    def variables(given: Json) -> Json:
        return {k: v for k, v in env_of(fetcher(render(model=model | given))).items() if k.startswith(prefix)}

    assert variables(access) == expected
    assert variables({}) == {}


EVERY_ACCESS = {"hfTokenSecretRef": {"name": "h", "key": "t"}} | {
    section: given for _, access, _, _ in BUCKETS for section, given in access.items()
}
TRANSFERS = [
    "HOME", "USER", "LOGNAME", "PYTHONNOUSERSITE", "HF_HOME", "XDG_CACHE_HOME",
    "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY",
    "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION",
    "GOOGLE_BASE_URL",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT",
    "HF_TOKEN",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
]  # fmt: skip


def test_variables_of_every_access_keep_their_order() -> None:
    """Another order is another pod template, which restarts models."""
    adapters_of_all = adapters(a="s3://bucket/a", b="gs://bucket/b", c="az://bucket/c")
    template = render(model={"uri": "hf://a/b", "trustRemoteCode": True, **EVERY_ACCESS}, adapters=adapters_of_all)
    assert list(env_of(fetcher(template))) == TRANSFERS
    of_server = list(env(template))
    assert [name for name in of_server if name in TRANSFERS[TRANSFERS.index("AWS_ENDPOINT_URL_S3") :]] == ["HF_TOKEN"]
    assert of_server[-1] == "HF_TOKEN"


def test_the_context_is_extended_by_the_supervisor_which_knows_the_model() -> None:
    for given, said in (
        ({"factor": 4}, "yarn:4"),
        ({"factor": 2.5, "originalMaxPositionEmbeddings": 32768}, "yarn:2.5:32768"),
    ):
        template = render(contextExtension=given)
        assert options(template, "--context-extension") == [said]
        assert flag(template, "--hf-overrides") is None


def test_sleep_is_only_where_it_is_asked_for() -> None:
    asleep = render(runtime={"sleepMode": True})
    assert "--enable-sleep-mode" in server(asleep)["args"]
    assert env(asleep)["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in env(render(**CPU))
