"""Environment variables of the server, of the container that fetches, and of the Job that looks at a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmservice_runtime import contract

from llmservice_operator.api.model import Model
from llmservice_operator.api.scalars import SecretKeyRef
from llmservice_operator.api.service import LLMService
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.api.uri import HubSource
from llmservice_operator.build.resources import cpu_kv_cache_gib
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.sources import needs_models_volume

EnvVar = dict[str, Any]

CA_DIR = "/llmservice/ca"
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_AWS_TOKEN = "AWS_SESSION_TOKEN"
_AZURE_KEYS = (
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
)  # fmt: skip

# Nothing of it is shared with the server: what lies there may name servers and credentials to libraries.
_SCRATCH = {
    "HOME": contract.TMP_DIR,
    "USER": "fetch",
    "LOGNAME": "fetch",
    "PYTHONNOUSERSITE": "1",
    "HF_HOME": f"{contract.TMP_DIR}/huggingface",
    "XDG_CACHE_HOME": f"{contract.TMP_DIR}/cache",
}


def environment(llm: LLMService, settings: Settings) -> list[EnvVar]:
    """Ours first, then the user's; a name that the user gives replaces ours where the API allows it.

    Credentials of hubs and buckets are the fetch container's, but for the token that a model's own code needs.
    """
    ours = _paths(llm) | _network(settings) | _engine(llm, settings)
    secrets = _hub_secrets(llm) if _needs_hub(llm.spec) else []
    return _with_given(ours, secrets, llm.spec.runtime.env)


def for_fetching(llm: LLMService, settings: Settings) -> list[EnvVar]:
    """What reaches hubs and buckets, for the container that fetches."""
    ours = _SCRATCH | _network(settings) | _buckets(llm.spec.model)
    given = [variable for variable in llm.spec.runtime.env if is_for_transfers(variable["name"])]
    return _with_given(ours, _hub_secrets(llm) + _bucket_secrets(llm), given)


def for_inspection(llm: LLMService, settings: Settings, *, hub: bool, bucket: str | None) -> list[EnvVar]:
    """The same for the Job that looks at a model, of its hub or its kind of buckets; nothing where it is mounted."""
    if not (hub or bucket):
        return []
    ours = _SCRATCH | _network(settings) | (_buckets(llm.spec.model, bucket) if bucket else {})
    given = [variable for variable in llm.spec.runtime.env if is_for_transfers(variable["name"])]
    return _with_given(ours, _hub_secrets(llm) if hub else _bucket_secrets(llm, bucket), given)


def _with_given(ours: Mapping[str, str], secrets: list[EnvVar], given: Sequence[EnvVar]) -> list[EnvVar]:
    names = {variable["name"] for variable in given}
    variables = [{"name": name, "value": value} for name, value in ours.items()] + secrets
    return [v for v in variables if v["name"] not in names] + [dict(v) for v in given]


def is_for_transfers(name: str) -> bool:
    """Whether a variable that the user sets says how files are reached, or is read on the way."""
    prefixes = ("HF_", "HUGGING_FACE_", "AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_")
    return name.startswith(prefixes) or name.upper().endswith("_PROXY")


def _paths(llm: LLMService) -> dict[str, str]:
    """Everything that is written goes to volumes: the root file system is read-only, the UID may be any."""
    cache = contract.CACHE_DIR
    return {
        "HOME": contract.HOME_DIR,
        # torch asks for the user's name; a UID without a passwd entry has none.
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
    """What lies in the home or working directory is never imported; of a pickled file torch loads tensors only.

    A model's own code may load what it likes. torch refuses both of its variables together.
    """
    variables = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    given = {variable["name"] for variable in spec.runtime.env}
    if spec.model.trust_remote_code or "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in given:
        return variables
    return variables | {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}


def _offline(spec: LLMServiceSpec) -> dict[str, str]:
    """vLLM needs no hub, and offline it does not wait for one that cannot be reached.

    Where something may be fetched, the supervisor says so to vLLM. A model's own code may name code of further
    repositories, which nobody else fetches.
    """
    if _needs_hub(spec):
        offline = "0"
    elif needs_models_volume(spec):
        return {}
    else:
        offline = "1"
    return {"HF_HUB_OFFLINE": offline, "TRANSFORMERS_OFFLINE": offline}


def _needs_hub(spec: LLMServiceSpec) -> bool:
    """Whether vLLM itself may fetch something."""
    return isinstance(spec.model.source, HubSource) and spec.model.trust_remote_code


def _network(settings: Settings) -> dict[str, str]:
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    proxies = {
        "HTTP_PROXY": settings.http_proxy,
        "HTTPS_PROXY": settings.https_proxy,
        "NO_PROXY": _no_proxy(settings),
    }
    for name, value in proxies.items():
        if value:
            # Programs disagree about which case they read.
            variables |= {name: value, name.lower(): value}
    if settings.hf_endpoint:
        variables["HF_ENDPOINT"] = settings.hf_endpoint
    if settings.ca_bundle:
        path = f"{CA_DIR}/{settings.ca_bundle.key}"
        variables |= {"SSL_CERT_FILE": path, "REQUESTS_CA_BUNDLE": path, "CURL_CA_BUNDLE": path}
    return variables


def _no_proxy(settings: Settings) -> str | None:
    """With a proxy, requests within the pod must stay in it: the supervisor asks vLLM on localhost."""
    if not (settings.http_proxy or settings.https_proxy):
        return settings.no_proxy
    given = [part.strip() for part in (settings.no_proxy or "").split(",") if part.strip()]
    return ",".join(given + [host for host in ("localhost", "127.0.0.1") if host not in given])


def _buckets(model: Model, scheme: str | None = None) -> dict[str, str]:
    """Under the names that clients know; of one scheme's buckets, or of all."""
    found = {
        "s3": {
            "AWS_ENDPOINT_URL_S3": model.s3.endpoint,
            "AWS_REGION": model.s3.region,
            "AWS_DEFAULT_REGION": model.s3.region,
        },
        "gs": {"GOOGLE_BASE_URL": model.gcs.endpoint},
        "az": {"AZURE_STORAGE_ACCOUNT_NAME": model.azure.account, "AZURE_STORAGE_ENDPOINT": model.azure.endpoint},
    }
    chosen = [variables for kind, variables in found.items() if scheme in (None, kind)]
    return {name: value for variables in chosen for name, value in variables.items() if value is not None}


def _engine(llm: LLMService, settings: Settings) -> dict[str, str]:
    # vLLM gives up on its engine after 600 s by itself; the supervisor keeps the start budget and says why.
    variables = {
        "VLLM_ENGINE_READY_TIMEOUT_S": str(contract.START_CEILING_SECONDS),
        # A host that may be asked for media could send the pod to one that may not.
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }
    if llm.spec.is_lora_on:
        # The supervisor loads adapters through vLLM's own API; its middleware closes that to everybody else.
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if llm.spec.runtime.sleep_mode:
        variables["VLLM_SERVER_DEV_MODE"] = "1"
    if llm.spec.accelerator.type != "cpu":
        return variables
    variables["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_kv_cache_gib(llm, settings))
    parallelism = llm.spec.parallelism
    if parallelism.accelerators > 1:
        # One NUMA node cannot be dealt out to several ranks.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if parallelism.tensor_parallel_size > 1:
        # Even eager tensor parallelism compiles one small function, and images without g++ die of it.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def _hub_secrets(llm: LLMService) -> list[EnvVar]:
    token = llm.spec.model.hf_token_secret_ref
    return [] if token is None else [_from_secret(contract.HF_TOKEN_ENV, token)]


def _bucket_secrets(llm: LLMService, scheme: str | None = None) -> list[EnvVar]:
    """Of one scheme's buckets, or of all. AWS' token is of temporary keys only, and of Azure's keys some will do."""
    model = llm.spec.model
    s3, gcs, azure = (
        model.s3.credentials_secret_ref,
        model.gcs.credentials_secret_ref,
        model.azure.credentials_secret_ref,
    )
    variables: list[EnvVar] = []
    if s3 is not None and scheme in (None, "s3"):
        variables += [_from_secret(key, SecretKeyRef(name=s3.name, key=key)) for key in _AWS_KEYS]
        variables.append(_from_secret(_AWS_TOKEN, SecretKeyRef(name=s3.name, key=_AWS_TOKEN), optional=True))
    if gcs is not None and scheme in (None, "gs"):
        variables.append(_from_secret("GOOGLE_SERVICE_ACCOUNT_KEY", gcs))
    if azure is not None and scheme in (None, "az"):
        references = [SecretKeyRef(name=azure.name, key=key) for key in _AZURE_KEYS]
        variables += [_from_secret(reference.key, reference, optional=True) for reference in references]
    return variables


def _from_secret(name: str, reference: SecretKeyRef, *, optional: bool = False) -> EnvVar:
    """The kubelet resolves it; the operator never reads a Secret."""
    chosen = {"name": reference.name, "key": reference.key} | ({"optional": True} if optional else {})
    return {"name": name, "valueFrom": {"secretKeyRef": chosen}}
