"""The pod template: server container, in which the supervisor runs, and fetch container."""

from __future__ import annotations

from typing import Any

from llmservice_api.memoize import cached_by_service
from llmservice_api.service import LLMService
from llmservice_runtime import contract

from llmservice_operator.manifests.engine import adapters_file, image, serve_options, vllm_arguments, vllm_version
from llmservice_operator.manifests.environment import environment, transfer_environment
from llmservice_operator.manifests.meta import (
    CONTAINER_SECURITY,
    Manifest,
    labels,
    operator_container,
    pod_security,
    pull_secrets,
)
from llmservice_operator.manifests.placement import affinity, spread_constraints, tolerations
from llmservice_operator.manifests.resources import fetch_resources, init_resources, server_resources, with_requests
from llmservice_operator.manifests.revision import NO_CHOICES, RevisionChoices
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.manifests.sources import fetched, needs_models_volume
from llmservice_operator.manifests.volumes import RUNTIME_VOLUME, Mounted, fetch_volumes, volumes

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
    given = llm.spec.pod_template
    spec: Manifest = {
        "initContainers": [
            _runtime_container(llm, settings, host_memory_gib),
            *(_users_container(container, settings) for container in given.spec.init_containers),
            *fetch_containers(llm, settings),
        ],
        "containers": [_server(llm, settings, chosen, host_memory_gib, mounted)],
        "volumes": [m.volume() for m in every.values()] + [dict(v) for v in given.spec.volumes],
        "securityContext": pod_security(llm, settings),
        # Removes the token and the Service variables: a Service named `vllm` would set VLLM_PORT, which vLLM reads.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": contract.grace_period_seconds(llm.spec.drain.timeout_seconds),
        **_placement(llm, settings, chosen),
    }
    metadata: Manifest = {"labels": given.metadata.labels | labels(llm)}
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
    llm: LLMService, settings: Settings, chosen: RevisionChoices, host_memory_gib: int, mounted: list[Mounted]
) -> Manifest:
    runtime, given = llm.spec.runtime, llm.spec.pod_template.spec
    flags = vllm_arguments(llm, vllm_version(llm, settings), chosen)
    container: Manifest = {
        "name": contract.SERVER_CONTAINER,
        "image": image(llm, settings),
        "command": list(contract.SERVE_COMMAND),
        "args": [*serve_options(llm, settings, chosen).to_args(), "--", *flags],
        "env": environment(llm, settings),
        "ports": [
            {"name": contract.HTTP_PORT_NAME, "containerPort": contract.HTTP_PORT, "protocol": "TCP"},
            {"name": contract.STATE_PORT_NAME, "containerPort": contract.STATE_PORT, "protocol": "TCP"},
        ],
        "resources": server_resources(llm, settings, host_memory_gib),
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
