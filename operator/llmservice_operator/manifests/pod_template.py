"""The pod template: server container, in which the supervisor runs, and fetch container; and the values in force, as
read from a template and for what the spec leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.constants import API_SERVER_LABEL
from llmservice_api.engine import Compilation, Parallelism
from llmservice_api.flags import in_force
from llmservice_api.model import HubSource
from llmservice_api.service import LLMService, cached_by_service
from llmservice_api.spec import LLMServiceSpec, LoRA
from llmservice_planner import gpus as catalogue
from llmservice_planner.batching import batching
from llmservice_planner.plan import GPU_MEMORY_UTILIZATION, Device
from llmservice_planner.quantity import gibibytes
from llmservice_planner.requests import request_of
from llmservice_planner.versions import image_version
from llmservice_runtime import contract
from llmservice_runtime.options import ServeOptions

from llmservice_operator.manifests import network
from llmservice_operator.manifests.containers import (
    RUNTIME_VOLUME,
    Mounted,
    environment,
    fetch_volumes,
    transfer_environment,
    volumes,
)
from llmservice_operator.manifests.devices import resource_claims, written_claim
from llmservice_operator.manifests.meta import (
    CONTAINER_SECURITY,
    Manifest,
    labels,
    operator_container,
    pod_security,
    pull_secrets,
)
from llmservice_operator.manifests.revision import NO_CHOICES, RevisionChoices
from llmservice_operator.manifests.server import (
    accelerator_resource,
    adapters_file,
    affinity,
    fetch_resources,
    image,
    init_resources,
    max_model_len,
    serve_options,
    server_resources,
    spread_constraints,
    tolerations,
    vllm_arguments,
    vllm_version,
    with_requests,
)
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.manifests.sources import fetched, needs_models_volume

START_CEILING_SECONDS = contract.START_CEILING_SECONDS
"""Limit of the startup probe. The supervisor enforces the start budget and reports the cause."""
_PULL_ALLOWANCE_SECONDS = 1800


def progress_deadline_seconds(llm: LLMService) -> int:
    """The spec's deadline, else the longest start and half an hour to pull the image."""
    return llm.spec.rollout.progress_deadline_seconds or START_CEILING_SECONDS + _PULL_ALLOWANCE_SECONDS


_STARTUP_PERIOD = 1


def pod_template(llm: LLMService, settings: Settings, chosen: RevisionChoices = NO_CHOICES) -> Manifest:
    """The template without the revision label, which is its hash. `chosen` are the plan's choices for open fields."""
    start = chosen.start or {}
    # By value: the recorded choices and the computed ones are two objects.
    return _rendered(
        llm,
        settings,
        chosen.gpu,
        "\n".join(chosen.excluded_gpus or ()),
        "\n".join(chosen.excluded_architectures or ()),
        chosen.max_model_len,
        chosen.host_memory_gib,
        start.get("budgetSeconds"),
        start.get("usualSeconds"),
        str((chosen.claim or written_claim(llm) or {}).get("name", "")),
    )


@cached_by_service
def _rendered(
    llm: LLMService,
    settings: Settings,
    gpu: str | None,
    excluded_gpus: str,
    excluded_architectures: str,
    max_model_len: int | None,
    host_memory_gib: int,
    budget_seconds: int | None,
    usual_seconds: int | None,
    claim_template: str,
) -> Manifest:
    times = {"budgetSeconds": budget_seconds, "usualSeconds": usual_seconds}
    start = {name: seconds for name, seconds in times.items() if seconds is not None}
    chosen = RevisionChoices(
        gpu=gpu,
        max_model_len=max_model_len,
        start=start,
        excluded_gpus=excluded_gpus.splitlines(),
        excluded_architectures=excluded_architectures.splitlines(),
    )
    mounted = volumes(llm, settings)
    every = {m.name: m for m in (*mounted, *fetch_volumes(llm, settings))}
    claims = resource_claims(llm, claim_template)
    given = llm.spec.pod_template
    spec: Manifest = {
        "initContainers": [
            _runtime_container(llm, settings, host_memory_gib),
            *(_users_container(container, settings) for container in given.spec.init_containers),
            *fetch_containers(llm, settings),
        ],
        "containers": [_server(llm, settings, chosen, host_memory_gib, mounted, claims[1])],
        "volumes": [m.volume() for m in every.values()] + [dict(v) for v in given.spec.volumes],
        "securityContext": pod_security(llm, settings),
        # Removes the token and the Service variables: a Service named `vllm` would set VLLM_PORT, which vLLM reads.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": contract.grace_period_seconds(llm.spec.drain.timeout_seconds),
        **network.pod_fields(llm),
        **({"resourceClaims": claims[0]} if claims[0] else {}),
        **_placement(llm, settings, chosen),
    }
    answers = {} if llm.spec.parallelism.data_parallel_mode is None else {API_SERVER_LABEL: "true"}
    metadata: Manifest = {"labels": given.metadata.labels | labels(llm) | answers}
    if given.metadata.annotations:
        metadata["annotations"] = dict(given.metadata.annotations)
    return {"metadata": metadata, "spec": spec}


def _runtime_container(llm: LLMService, settings: Settings, host_memory_gib: int) -> Manifest:
    """Copies the supervisor to the server's volume."""
    return operator_container(
        settings,
        contract.RUNTIME_CONTAINER,
        contract.INSTALL_COMMAND,
        resources=init_resources(server_resources(llm, settings, host_memory_gib), settings),
        volumeMounts=[{"name": RUNTIME_VOLUME, "mountPath": contract.RUNTIME_DIR}],
    )


def _server(
    llm: LLMService,
    settings: Settings,
    chosen: RevisionChoices,
    host_memory_gib: int,
    mounted: list[Mounted],
    claims: list[dict[str, Any]],
) -> Manifest:
    runtime, given = llm.spec.runtime, llm.spec.pod_template.spec
    flags = vllm_arguments(llm, vllm_version(llm, settings), chosen)
    container: Manifest = {
        "name": contract.SERVER_CONTAINER,
        "image": image(llm, settings),
        "command": list(contract.SERVE_COMMAND),
        "args": [*serve_options(llm, settings, chosen).to_args(), "--", *flags],
        "env": environment(llm, settings),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _ports(llm).items()],
        "resources": server_resources(llm, settings, host_memory_gib) | ({"claims": claims} if claims else {}),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [m.mount() for m in mounted] + [dict(m) for m in given.volume_mounts],
        # A short period, so that Ready follows soon; the supervisor enforces the start budget.
        "startupProbe": _probe(contract.STARTUP_PATH, _STARTUP_PERIOD, START_CEILING_SECONDS // _STARTUP_PERIOD),
        "readinessProbe": _probe(contract.READY_PATH, 2, 2),
        # No liveness probe: the supervisor ends the container if vLLM or itself hangs. Over the network, other pods
        # could restart the model by keeping the port busy.
        "terminationMessagePath": contract.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if runtime.image_pull_policy is not None:
        container["imagePullPolicy"] = runtime.image_pull_policy
    return container


def _ports(llm: LLMService) -> dict[str, int]:
    is_group = llm.spec.parallelism.node_count > 1
    group = {contract.GROUP_PORT_NAME: contract.GROUP_PORT} if is_group else {}
    http = contract.LEADER_PORT_NAME if is_group else contract.HTTP_PORT_NAME
    return {http: contract.HTTP_PORT, contract.STATE_PORT_NAME: contract.STATE_PORT, **group}


def _probe(path: str, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": contract.STATE_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _users_container(container: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A user's init container, with default security and requests, for `restricted` and quotas."""
    security = {key: value for key, value in CONTAINER_SECURITY.items() if key != "readOnlyRootFilesystem"}
    return with_requests(container, settings) | {"securityContext": security | (container.get("securityContext") or {})}


def _placement(llm: LLMService, settings: Settings, chosen: RevisionChoices) -> Manifest:
    given = llm.spec.pod_template.spec
    placement: Manifest = {
        "nodeSelector": dict(given.node_selector),
        "tolerations": tolerations(llm),
        "affinity": affinity(llm, chosen),
        "topologySpreadConstraints": spread_constraints(llm),
        "priorityClassName": given.priority_class_name,
        "schedulerName": given.scheduler_name,
        "runtimeClassName": given.runtime_class_name,
        "serviceAccountName": given.service_account_name,
        "imagePullSecrets": pull_secrets(llm, settings),
    }
    return {key: value for key, value in placement.items() if value}


def fetch_containers(llm: LLMService, settings: Settings) -> list[Manifest]:
    """The native sidecar that fetches models and adapters; none if nothing may be fetched.

    Only it has credentials and write access to the models; the server sends it requests over a socket. It runs as long
    as the server, because adapters may be added at any time.
    """
    if not needs_models_volume(llm.spec):
        return []
    file = adapters_file(llm.spec)
    # Each may hold certificates or tokens, written by an init container or a driver.
    users_mounts = [{**mount, "readOnly": True} for mount in llm.spec.pod_template.spec.volume_mounts]
    container = operator_container(
        settings,
        contract.FETCH_CONTAINER,
        contract.FETCH_COMMAND,
        args=[
            *(f"--fetch={name}={uri}" for name, uri in fetched(llm.spec).items()),
            *([] if file is None else [f"--adapters-file={file}"]),
            *fetch_options(llm),
        ],
        env=transfer_environment(llm, settings),
        restartPolicy="Always",
        resources=fetch_resources(settings),
        volumeMounts=[m.mount() for m in fetch_volumes(llm, settings)] + users_mounts,
    )
    return [container]


def fetch_options(llm: LLMService) -> tuple[str, ...]:
    """Options of the fetch container for a claim; none for scratch space, which is not verified or pruned."""
    cache = llm.spec.model.cache
    if not cache.is_enabled:
        return ()
    hours = () if cache.prune_after_hours is None else (f"--prune-after-hours={cache.prune_after_hours}",)
    verify = () if cache.verify is None else (f"--verify={cache.verify.lower()}",)
    return (f"--service={llm.namespace}/{llm.name}", *hours, *verify)


Json = Mapping[str, Any]

_LONGEST = 1024
_VERSION, _DRAIN = "--expected-version", "--drain-seconds"


@dataclass(frozen=True, slots=True)
class Server:
    """Values in force that the revision key does not cover. None: the template lacks it."""

    image: str | None = None
    vllm_version: str | None = None
    """The version for which its flags were rendered, without a leading v."""
    drain_seconds: int | None = None
    cpu_kv_cache_gib: int | None = None


def server(template: Json) -> Server:
    """Values of the server container, read from a template: recorded ones have the settings and release of their time.

    A wrong type becomes None, since other releases and users write templates too.
    """
    container = _server_container(template)
    if container is None:
        return Server()
    options, image = dict(_options(container)), _text(container.get("image"))
    return Server(
        image=image,
        vllm_version=_text(options.get(_VERSION)) or image_version(image or ""),
        drain_seconds=_whole(options.get(_DRAIN, f"{ServeOptions.drain_seconds:g}")),
        cpu_kv_cache_gib=_whole(_variables(container).get("VLLM_CPU_KVCACHE_SPACE")),
    )


def server_arguments(template: Json) -> list[object]:
    """Arguments of the server container: the supervisor's, `--`, and vLLM's. Empty without one."""
    arguments = (_server_container(template) or {}).get("args")
    return list(arguments) if isinstance(arguments, list) else []


def _server_container(template: Json) -> Json | None:
    spec = template.get("spec")
    some = spec.get("containers") if isinstance(spec, Mapping) else None
    found = (c for c in some if isinstance(c, Mapping)) if isinstance(some, list) else ()
    return next((c for c in found if c.get("name") == contract.SERVER_CONTAINER), None)


def _options(container: Json) -> Iterator[tuple[str, str]]:
    """Names and values of the supervisor's options, which precede `--`."""
    arguments = container.get("args")
    for argument in arguments if isinstance(arguments, list) else ():
        if argument == "--" or not isinstance(argument, str):
            return
        name, _, value = argument.partition("=")
        yield name, value


def _variables(container: Json) -> Mapping[str, object]:
    """The environment by name; of duplicates the last."""
    given = container.get("env")
    some = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return {str(one.get("name")): one.get("value") for one in some}


def _text(value: object) -> str | None:
    """A text that the status can hold; no image or version is longer."""
    return value if isinstance(value, str) and len(value) <= _LONGEST else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10 else None


SHORTEST_CONTEXT = 512
"""Tokens; no served model has a shorter context."""


@cached_by_service
def effective(llm: LLMService, template: Manifest, chosen: RevisionChoices = NO_CHOICES) -> dict[str, Any]:
    """status.effective for the pods of one revision: values of the template, of the spec's fields, and of the choices.

    Values that only vLLM knows, once it has read the model, are absent.
    """
    spec, runs = llm.spec, server(template)
    return {
        "model": _known(
            servedModelNames=list(llm.served_model_names),
            revision=_revision(spec),
            runner=spec.model.runner,
            convert=spec.model.convert,
        ),
        "precision": in_force(spec.precision)
        | _known(dtype=spec.precision.compute_dtype, quantization=spec.precision.method),
        "parallelism": _sizes(spec.parallelism),
        "batching": _batching(llm, runs, chosen),
        "attention": in_force(spec.attention),
        "compilation": _compilation(spec.compilation),
        **_optional_sections(spec),
        "generation": in_force(spec.generation),
        "accelerator": _accelerator(llm),
        "rollout": {"strategy": spec.rollout.strategy, "progressDeadlineSeconds": progress_deadline_seconds(llm)},
        "drain": _known(timeoutSeconds=runs.drain_seconds),
        "endpoint": {"port": spec.endpoint.port},
        "runtime": _known(image=runs.image, version=runs.vllm_version, sleepMode=spec.runtime.sleep_mode),
    }


def _batching(llm: LLMService, runs: Server, chosen: RevisionChoices) -> dict[str, Any]:
    sequences, tokens = _limits(llm, runs, chosen)
    return in_force(llm.spec.batching) | _known(
        maxNumSeqs=sequences, maxNumBatchedTokens=tokens, maxModelLen=max_model_len(llm, chosen)
    )


def _revision(spec: LLMServiceSpec) -> str | None:
    source = spec.model.source
    return source.revision if isinstance(source, HubSource) else None


def _compilation(compilation: Compilation) -> dict[str, Any]:
    """With enforceEager mode and graphs are known; otherwise vLLM derives them from the level."""
    if compilation.enforce_eager:
        return {"enforceEager": True, "mode": "none", "cudaGraphs": "none"}
    return in_force(compilation)


def _optional_sections(spec: LLMServiceSpec) -> dict[str, Any]:
    """Optional sections that the user set, with their defaults."""
    sections = {
        "contextExtension": spec.context_extension,
        "speculativeDecoding": spec.speculative_decoding,
        "startCache": spec.start_cache,
        "lora": (spec.lora or LoRA()) if spec.is_lora_on else None,
    }
    return {name: in_force(section) for name, section in sections.items() if section is not None}


def _limits(llm: LLMService, runs: Server, chosen: RevisionChoices) -> tuple[int | None, int | None]:
    """maxNumSeqs and maxNumBatchedTokens by the planner's rules; None where the possible GPUs differ."""
    given = llm.spec.batching
    request = request_of(
        llm.spec,
        architecture=None,
        tensors=None,
        device=None,
        vllm_version=runs.vllm_version or "",
        cpu_kv_cache_gib=runs.cpu_kv_cache_gib or 1,
    )
    length = _longest(llm, chosen)
    request = replace(request, max_model_len=length)
    devices = (request.device,) if request.device is not None else _devices(llm, chosen)
    possible = {batching(replace(request, device=device)) for device in devices}
    if len(possible) != 1:
        return given.max_num_seqs, given.max_num_batched_tokens
    limits = possible.pop()
    # Without chunked prefill, as in some pooling models, one step holds the longest prompt.
    is_whole = given.chunked_prefill is False or (given.chunked_prefill is None and llm.spec.model.runner == "pooling")
    is_open = length is None and (is_whole or limits.sequences * SHORTEST_CONTEXT < limits.tokens)
    return limits.sequences, given.max_num_batched_tokens if is_open else limits.tokens


def _longest(llm: LLMService, chosen: RevisionChoices) -> int | None:
    """Tokens: the maxModelLen that vLLM starts with, if the spec or the plan has it."""
    stated = max_model_len(llm, chosen)
    if isinstance(stated, int):
        return stated
    if stated is None and (planned := (chosen.plan or {}).get("requestedMaxModelLen")):
        return int(planned)
    return None if llm.spec.context_extension is not None else llm.spec.model.architecture.max_position_embeddings


def _devices(llm: LLMService, chosen: RevisionChoices) -> tuple[Device, ...]:
    """GPUs that the pods may run on; empty if a product is unknown."""
    stated = None if llm.spec.accelerator.memory is None else gibibytes(llm.spec.accelerator.memory)
    products = llm.spec.accelerator.products or () if chosen.gpu is None else (chosen.gpu,)
    devices = [catalogue.device(product) or catalogue.device(product, stated) for product in products]
    return tuple(device for device in devices if device is not None) if None not in devices else ()


def _sizes(parallelism: Parallelism) -> dict[str, Any]:
    """Without the number of nodes where it is one: no stored status changes by an upgrade."""
    left_out = ("network", "topologyKey", *(("nodes",) if parallelism.node_count == 1 else ()))
    return {name: value for name, value in in_force(parallelism).items() if name not in left_out}


def _accelerator(llm: LLMService) -> dict[str, Any]:
    accelerator = llm.spec.accelerator
    if accelerator.type == "cpu":
        return {"type": "cpu", "count": 0}
    utilization = accelerator.gpu_memory_utilization
    return _known(
        type=accelerator.type,
        resourceName=accelerator_resource(llm),
        count=llm.spec.parallelism.accelerators,
        gpuMemoryUtilization=GPU_MEMORY_UTILIZATION if utilization is None else utilization,
    )


def gpus(llm: LLMService) -> int:
    """GPUs that all desired replicas request together."""
    return 0 if llm.spec.accelerator.type == "cpu" else llm.spec.scaling.replicas * llm.spec.parallelism.accelerators


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
