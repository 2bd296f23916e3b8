"""The pod template: the server container, in which the supervisor runs, and the fetch container; meets `restricted`."""

from __future__ import annotations

from typing import Any

from llmservice_runtime import contract

from llmservice_operator.api.remembered import of_service
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.chosen import NOTHING, Chosen
from llmservice_operator.build.deployment import START_CEILING_SECONDS
from llmservice_operator.build.engine import image, serve_options, vllm_arguments, vllm_version
from llmservice_operator.build.environment import environment
from llmservice_operator.build.fetcher import fetch_containers
from llmservice_operator.build.meta import Manifest, labels
from llmservice_operator.build.placement import affinity, spread_constraints, tolerations
from llmservice_operator.build.resources import init_resources, server_resources, with_requests
from llmservice_operator.build.security import CONTAINER_SECURITY, operator_container, pod_security, pull_secrets
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.volumes import RUNTIME_VOLUME, Mounted, fetch_volumes, volumes

_STARTUP_PERIOD = 1


def pod_template(llm: LLMService, settings: Settings, chosen: Chosen = NOTHING) -> Manifest:
    """The template without the revision label, its hash. `chosen` is what the plan decided for open fields."""
    start = chosen.start or {}
    # By value: what was chosen a moment ago and what the record says of it are two objects.
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


@of_service
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
    chosen = Chosen(
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
        # Drops the token and the Service variables: a Service named `vllm` would set VLLM_PORT, which vLLM reads.
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
    """Copies the supervisor to where the server finds it."""
    return operator_container(
        settings,
        contract.RUNTIME_CONTAINER,
        contract.INSTALL_COMMAND,
        resources=init_resources(server_resources(llm, settings, host_memory_gib), settings),
        volumeMounts=[{"name": RUNTIME_VOLUME, "mountPath": contract.RUNTIME_DIR}],
    )


def _server(
    llm: LLMService, settings: Settings, chosen: Chosen, host_memory_gib: int, mounted: list[Mounted]
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
        # No liveness probe: the supervisor ends the container when vLLM or itself hangs. With a probe over the
        # network, other pods could restart the model by keeping the port busy.
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
    """A user's init container, with the security and requests that it lacks, for `restricted` and quotas."""
    security = {key: value for key, value in CONTAINER_SECURITY.items() if key != "readOnlyRootFilesystem"}
    return with_requests(container, settings) | {"securityContext": security | (container.get("securityContext") or {})}


def _placement(llm: LLMService, settings: Settings, chosen: Chosen) -> Manifest:
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
