"""Volumes of the pod, their mounts, and environment variables: of the server, the fetch container, and the Job that
inspects a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.base import SecretKeyRef
from llmservice_api.constants import cache_claim_name, start_cache_claim_name
from llmservice_api.model import ACCESSES, FETCHED, Access, HubSource, Model
from llmservice_api.runtime import START_CACHE_VOLUME
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_runtime import contract

from llmservice_operator.manifests import network
from llmservice_operator.manifests.meta import adapters_config_name
from llmservice_operator.manifests.revision import revision_key
from llmservice_operator.manifests.server import CHAT_TEMPLATE_FILE, cpu_kv_cache_gib, shared_memory_gib
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.manifests.sources import Store, needs_models_volume, places

EnvVar = dict[str, Any]

_PREFIXES = (*(prefix for access in ACCESSES for prefix in access.prefixes), "SSL_CERT_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CA_DIR = "/llmservice/ca"
STEP_SECONDS = 60
"""Of a group, for one step of the model."""

# Separate from the server: libraries read servers and credentials from files in these folders.
_SCRATCH = {
    "HOME": contract.TMP_DIR,
    "USER": "fetch",
    "LOGNAME": "fetch",
    "PYTHONNOUSERSITE": "1",
    "HF_HOME": f"{contract.TMP_DIR}/huggingface",
    "XDG_CACHE_HOME": f"{contract.TMP_DIR}/cache",
}


def environment(llm: LLMService, settings: Settings) -> list[EnvVar]:
    """Variables of the server: the operator's, then the user's, which replace those of the same name.

    Only the fetch container has credentials for hubs and buckets, except a token that the model's own code needs.
    """
    ours = _paths(llm) | _network(settings) | _engine(llm, settings)
    secrets = _secrets(llm.spec.model, {"hf"} if _needs_hub(llm.spec) else ())
    return _merged(ours, [*_of_group(llm), *_of_events(llm), *secrets], llm.spec.runtime.env)


def _of_events(llm: LLMService) -> Iterator[EnvVar]:
    """The address in the topic of published events, where a group's pods do not have it anyway."""
    events = llm.spec.batching.kv_events
    if events is not None and events.enabled and events.port is not None and llm.spec.parallelism.node_count == 1:
        yield _of_pod(contract.POD_IP_ENV, "status.podIP")


def _of_pod(variable: str, path: str) -> EnvVar:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _of_group(llm: LLMService) -> Iterator[EnvVar]:
    """What a pod of a group reports of itself, and the token by which its members know each other."""
    if llm.spec.parallelism.node_count == 1:
        return
    yield {"name": contract.GROUP_TOKEN_ENV, "value": group_token(llm)}
    for variable, path in (
        (contract.POD_NAME_ENV, "metadata.name"),
        (contract.NODE_NAME_ENV, "spec.nodeName"),
        (contract.POD_IP_ENV, "status.podIP"),
    ):
        yield _of_pod(variable, path)


def group_token(llm: LLMService) -> str:
    """The same for all pods of a revision. Whoever may read the LLMService or its pods can know it."""
    return hashlib.sha256(f"{llm.uid}/{revision_key(llm.spec)}".encode()).hexdigest()


def transfer_environment(llm: LLMService, settings: Settings, schemes: Collection[str] = FETCHED) -> list[EnvVar]:
    """Variables for containers of the operator's image that read hubs and buckets of these URI schemes."""
    ours = _SCRATCH | _network(settings) | _settings(llm.spec.model, schemes)
    given = [variable for variable in llm.spec.runtime.env if is_for_transfers(variable["name"])]
    return _merged(ours, _secrets(llm.spec.model, schemes), given)


def _merged(ours: Mapping[str, str], secrets: Iterable[EnvVar], given: list[EnvVar]) -> list[EnvVar]:
    """The operator's variables, secrets and the user's, in this order; a name of the user's occurs once."""
    given = list(_in_both_spellings(given))
    names = {variable["name"] for variable in given}
    variables = [{"name": name, "value": value} for name, value in ours.items()] + [*secrets]
    return [v for v in variables if v["name"] not in names] + [dict(v) for v in given]


def _in_both_spellings(given: list[EnvVar]) -> Iterator[EnvVar]:
    """Sets both spellings of a proxy variable of the user's: programs differ in which of two they read."""
    names = {variable["name"] for variable in given}
    for variable in given:
        yield variable
        other = variable["name"].swapcase()
        if variable["name"].upper() in _PROXIES and other not in names:
            yield {**variable, "name": other}


def is_for_transfers(name: str) -> bool:
    """Whether clients of hubs, buckets and proxies read a variable of the user's."""
    return name.startswith(_PREFIXES) or name.upper().endswith("_PROXY")


def _paths(llm: LLMService) -> dict[str, str]:
    """Folders that programs write to, all of them volumes: the root file system is read-only, and the UID may be
    any."""
    cache = contract.CACHE_DIR
    return {
        "HOME": contract.HOME_DIR,
        # torch asks for the user's name, which a UID without a passwd entry lacks.
        "USER": "vllm",
        "LOGNAME": "vllm",
        "PYTHONPATH": contract.RUNTIME_DIR,
        **_no_code_from_files(llm.spec),
        contract.DRAIN_FILE_ENV: contract.DRAIN_FILE,
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "NUMBA_CACHE_DIR": f"{cache}/numba",
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "HF_HOME": f"{cache}/huggingface",
        **_offline(llm.spec),
    }


def _no_code_from_files(spec: LLMServiceSpec) -> dict[str, str]:
    """No imports from the home or working directory, and no code from pickled files: torch loads tensors only.

    With trustRemoteCode the model's code may unpickle anything. torch refuses both of its variables together.
    """
    variables = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    given = {variable["name"] for variable in spec.runtime.env}
    if spec.model.trust_remote_code or "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in given:
        return variables
    return variables | {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}


def _offline(spec: LLMServiceSpec) -> dict[str, str]:
    """Whether the Hugging Face libraries may use the hub; offline they do not wait for an unreachable one.

    For fetched models the supervisor sets the variables for vLLM. A model's own code may import code of other
    repositories, which only the libraries fetch.
    """
    if _needs_hub(spec):
        offline = "0"
    elif needs_models_volume(spec):
        return {}
    else:
        offline = "1"
    return {"HF_HUB_OFFLINE": offline, "TRANSFORMERS_OFFLINE": offline}


def _needs_hub(spec: LLMServiceSpec) -> bool:
    """Whether vLLM itself may fetch files."""
    return isinstance(spec.model.source, HubSource) and spec.model.trust_remote_code


def _network(settings: Settings) -> dict[str, str]:
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    proxies = {"HTTP_PROXY": settings.http_proxy, "HTTPS_PROXY": settings.https_proxy, "NO_PROXY": _no_proxy(settings)}
    for name, value in proxies.items():
        if value:
            # Programs differ in the case that they read.
            variables |= {name: value, name.lower(): value}
    if settings.hf_endpoint:
        variables["HF_ENDPOINT"] = settings.hf_endpoint
    if settings.ca_bundle:
        path = f"{CA_DIR}/{settings.ca_bundle.key}"
        variables |= {"SSL_CERT_FILE": path, "REQUESTS_CA_BUNDLE": path, "CURL_CA_BUNDLE": path}
    return variables


def _no_proxy(settings: Settings) -> str | None:
    """NO_PROXY with localhost if there is a proxy: the supervisor sends requests to vLLM on localhost."""
    if not (settings.http_proxy or settings.https_proxy):
        return settings.no_proxy
    given = [part.strip() for part in (settings.no_proxy or "").split(",") if part.strip()]
    return ",".join(given + [host for host in ("localhost", "127.0.0.1") if host not in given])


def _accesses(schemes: Collection[str]) -> Iterator[Access]:
    return (access for access, names in ACCESSES.items() if not set(names).isdisjoint(schemes))


def _settings(model: Model, schemes: Collection[str]) -> dict[str, str]:
    """Access to sources of these schemes, in variables that clients know."""
    chosen = [access.settings(model) for access in _accesses(schemes)]
    return {name: value for settings in chosen for name, value in settings.items() if value is not None}


def _engine(llm: LLMService, settings: Settings) -> dict[str, str]:
    # vLLM's own limit is 600 s; the supervisor enforces the start budget and reports the cause.
    variables = {
        "VLLM_ENGINE_READY_TIMEOUT_S": str(contract.START_CEILING_SECONDS),
        # A redirect could lead from an allowed host to another one.
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }
    if llm.spec.is_lora_on:
        # The supervisor loads adapters through vLLM's own API; its middleware closes that to others.
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if llm.spec.runtime.sleep_mode:
        variables["VLLM_SERVER_DEV_MODE"] = "1"
    if (events := llm.spec.batching.kv_events) is not None and events.enabled:
        # Of which earlier versions of vLLM make the hash before the first block: by chance without it.
        variables["PYTHONHASHSEED"] = str(int(hashlib.sha256(llm.uid.encode()).hexdigest()[:8], 16))
    if llm.spec.parallelism.node_count > 1:
        # vLLM's own limit is 300 s, for which a stream would hang after the network was cut.
        variables["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = str(llm.spec.parallelism.step_timeout_seconds or STEP_SECONDS)
        variables |= network.variables(llm)
    if llm.spec.accelerator.type != "cpu":
        return variables
    # On CPUs vLLM 0.32 cannot read the code that it saves, so that each start would compile again; without saving, the
    # compiler's own cache is used (vllm/compilation/decorators.py, DYNAMO_TRACE_ONCE).
    variables["VLLM_USE_AOT_COMPILE"] = "0"
    # Precompiled headers are in the pod's own /tmp, and created at each start even without compilation.
    variables["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
    variables["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_kv_cache_gib(llm, settings))
    parallelism = llm.spec.parallelism
    if parallelism.accelerators > 1:
        # vLLM cannot divide one NUMA node between ranks.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if parallelism.tensor_parallel_size > 1:
        # Even eager tensor parallelism compiles one small function, which fails in images without g++.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def _secrets(model: Model, schemes: Collection[str]) -> Iterator[EnvVar]:
    """Credentials for these schemes."""
    for access in _accesses(schemes):
        reference = access.secret(model)
        if isinstance(reference, SecretKeyRef):
            (variable,) = access.keys
            yield _from_secret(variable, reference.name, reference.key)
        elif reference is not None:
            yield from (_from_secret(key, reference.name, key) for key in access.keys)
            yield from (_from_secret(key, reference.name, key, optional=True) for key in access.optional_keys)


def _from_secret(variable: str, secret: str, key: str, *, optional: bool = False) -> EnvVar:
    """The kubelet resolves it; the operator does not read Secrets."""
    reference = {"name": secret, "key": key} | ({"optional": True} if optional else {})
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


RUNTIME_VOLUME = "runtime"
_SMALL_VOLUMES = ("configMap", "secret", "projected")


@dataclass(frozen=True, slots=True)
class Mounted:
    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False

    def volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    def mount(self) -> dict[str, Any]:
        mount: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        return mount | {"readOnly": True} if self.read_only else mount


def volumes(llm: LLMService, settings: Settings) -> list[Mounted]:
    """The operator's volumes in the server container; the user's follow them."""
    return [
        Mounted(RUNTIME_VOLUME, {"emptyDir": {}}, contract.RUNTIME_DIR, read_only=True),
        Mounted("run", {"emptyDir": {}}, contract.RUN_DIR),
        Mounted("home", {"emptyDir": {}}, contract.HOME_DIR),
        Mounted("tmp", {"emptyDir": {}}, contract.TMP_DIR),
        Mounted("cache", {"emptyDir": {}}, contract.CACHE_DIR),
        *_start_cache(llm),
        *_models(llm),
        *_sources(llm),
        *_chat_template(llm),
        *_adapters(llm),
        *_api_keys(llm),
        *_shared_memory(llm, settings),
        *ca_bundle(settings),
    ]


def fetch_volumes(llm: LLMService, settings: Settings) -> list[Mounted]:
    """Volumes of the fetch container, which alone writes models and links; none if nothing may be fetched."""
    if not needs_models_volume(llm.spec):
        return []
    return [
        *(replace(mounted, read_only=False) for mounted in _models(llm)),
        Mounted("fetch-tmp", {"emptyDir": {}}, contract.TMP_DIR),
        *_adapters(llm),
        *ca_bundle(settings),
    ]


def _start_cache(llm: LLMService) -> list[Mounted]:
    """The claim for compiled code; without it the supervisor uses a folder in the pod."""
    if llm.spec.start_cache is None:
        return []
    source = {"persistentVolumeClaim": {"claimName": start_cache_claim_name(llm.name)}}
    return [Mounted(START_CACHE_VOLUME, source, contract.START_CACHE_DIR)]


def _models(llm: LLMService) -> list[Mounted]:
    """Fetched files, in a claim if there is one, and the socket of the fetch container."""
    if not needs_models_volume(llm.spec):
        return []
    return [
        Mounted("models", _model_cache(llm), contract.MODELS_DIR, read_only=True),
        Mounted("fetch", {"emptyDir": {}}, contract.FETCH_DIR, read_only=True),
    ]


def _sources(llm: LLMService) -> list[Mounted]:
    """Claims and images of the model, the draft model and the adapters."""
    pull_policy = llm.spec.runtime.image_pull_policy
    return [
        Mounted(place.volume, source_volume(at, pull_policy), place.path, read_only=True)
        for at, place in places(llm.spec).items()
    ]


def source_volume(at: Store, pull_policy: str | None) -> dict[str, Any]:
    if at.kind == "claim":
        # Read-only on both levels: the kubelet then does not change the files' owners.
        return {"persistentVolumeClaim": {"claimName": at.name, "readOnly": True}}
    return {"image": {"reference": at.name} | ({} if pull_policy is None else {"pullPolicy": pull_policy})}


def _chat_template(llm: LLMService) -> list[Mounted]:
    if (template := llm.spec.model.chat_template) is None:
        return []
    folder, _, file = CHAT_TEMPLATE_FILE.rpartition("/")
    reference = template.config_map_key_ref
    config_map = {"name": reference.name, "items": [{"key": reference.key, "path": file}]}
    return [Mounted("chat-template", {"configMap": config_map}, folder, read_only=True)]


def _adapters(llm: LLMService) -> list[Mounted]:
    """The list of adapters; optional, so that the pod starts without it."""
    if not llm.spec.is_lora_on:
        return []
    listed = {"configMap": {"name": adapters_config_name(llm), "optional": True}}
    return [Mounted("adapters", listed, contract.ADAPTERS_DIR, read_only=True)]


def _api_keys(llm: LLMService) -> list[Mounted]:
    """The clients' keys. A folder and not a file (subPath): the kubelet updates only folders while the pod runs."""
    reference = llm.spec.endpoint.api_key_secret_ref
    if reference is None:
        return []
    folder, _, file = contract.API_KEYS_FILE.rpartition("/")
    secret = {"secretName": reference.name, "items": [{"key": reference.key, "path": file}]}
    return [Mounted("endpoint-keys", {"secret": secret}, folder, read_only=True)]


def _model_cache(llm: LLMService) -> dict[str, Any]:
    cache = llm.spec.model.cache
    if not cache.is_enabled:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": cache.claim_name or cache_claim_name(llm.name)}}


def _shared_memory(llm: LLMService, settings: Settings) -> list[Mounted]:
    size = shared_memory_gib(llm, settings)
    if size == 0:
        return []
    return [Mounted("dshm", {"emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Gi"}}, contract.SHM_DIR)]


def ca_bundle(settings: Settings) -> list[Mounted]:
    """The certificates to trust, if the settings name some."""
    if settings.ca_bundle is None:
        return []
    return [Mounted("ca-bundle", {"configMap": {"name": settings.ca_bundle.config_map}}, CA_DIR, read_only=True)]


def small_users_volumes(llm: LLMService) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The user's volumes that may hold certificates and tokens, with their mounts; others are large or bound to a
    node."""
    given = llm.spec.pod_template.spec
    small = [dict(volume) for volume in given.volumes if any(kind in volume for kind in _SMALL_VOLUMES)]
    names = {volume["name"] for volume in small}
    return small, [dict(mount) for mount in given.volume_mounts if mount["name"] in names]
