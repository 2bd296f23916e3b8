"""The inspection Job: reads a model's config.json and the headers of its weights before any pod is created.

A Job has the Secrets, claims, service account and network of the service's namespace, which the operator lacks. It
reads some kilobytes, needs no accelerator, and is deleted once its result is recorded.
"""

from __future__ import annotations

from llmservice_api.constants import INSPECTS_LABEL
from llmservice_api.model import ACCESS_FIELDS, ClaimSource, is_fetched, scheme_of
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_runtime import contract

from llmservice_operator.manifests.containers import (
    Mounted,
    ca_bundle,
    is_for_transfers,
    small_users_volumes,
    source_volume,
    transfer_environment,
)
from llmservice_operator.manifests.meta import (
    Manifest,
    digest,
    labels,
    metadata,
    operator_container,
    pod_security,
    pull_secrets,
    selector,
)
from llmservice_operator.manifests.server import INSPECT_LIMITS, helper_resources, tolerations
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.manifests.sources import model_path, store

DEADLINE_SECONDS = 120
"""From the Job's creation, including the pull of its image and the inspection's own 100 s."""
_NAME_BYTES = 63
"""Length of a Job's name, which is also the value of a label."""

# The root file system is read-only, and the hub libraries create folders.
_SCRATCH = Mounted("tmp", {"emptyDir": {"sizeLimit": "64Mi"}}, contract.TMP_DIR)


def is_wanted(llm: LLMService) -> bool:
    """Whether an inspection reads only some kilobytes. False for the runtime's image, which the Job does not run, and
    for a model's image, which the node would pull completely."""
    return not scheme_of(llm.spec.model.uri).not_inspected


def inspection_key(spec: LLMServiceSpec) -> str:
    """Hash of the fields that decide what the inspection reads and with which credentials: each hash has its own
    Job."""
    fields = {"uri", *ACCESS_FIELDS}
    model = spec.model.model_dump(mode="json", include=fields, exclude_defaults=True)
    variables = [variable for variable in spec.runtime.env if is_for_transfers(variable["name"])]
    return digest([model, variables if is_fetched(spec.model.source) else []])


def job_name(llm: LLMService) -> str:
    """NAME-inspect-HASH. The hash covers the uid, so that a later LLMService of the same name has another Job."""
    ending = f"-inspect-{digest([llm.uid, inspection_key(llm.spec)])}"
    return llm.name[: _NAME_BYTES - len(ending)].rstrip("-.") + ending


def job(llm: LLMService, settings: Settings) -> Manifest:
    meta = metadata(llm, job_name(llm))
    own = {**labels(llm), "app.kubernetes.io/component": "inspection"}
    # Without the service label: Service, budget and Deployment must not select this pod.
    of_pod = {key: value for key, value in own.items() if key not in selector(llm)} | {INSPECTS_LABEL: llm.name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta | {"labels": own},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "template": {"metadata": {"labels": of_pod}, "spec": _pod(llm, settings)},
        },
    }


def _pod(llm: LLMService, settings: Settings) -> Manifest:
    source = llm.spec.model.source
    mounted = [*ca_bundle(settings), *([_SCRATCH] if is_fetched(source) else [])]
    if (at := store(source)) is not None:
        volume = source_volume(at, llm.spec.runtime.image_pull_policy)
        mounted.insert(0, Mounted("source", volume, contract.SOURCE_DIR, read_only=True))
    users_volumes, users_mounts = small_users_volumes(llm)
    spec: Manifest = {
        "containers": [_container(llm, settings, [m.mount() for m in mounted] + users_mounts)],
        "volumes": [m.volume() for m in mounted] + users_volumes,
        "securityContext": pod_security(llm, settings),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": tolerations(llm),
        "serviceAccountName": llm.spec.pod_template.spec.service_account_name,
        "imagePullSecrets": pull_secrets(llm, settings),
        **_near_the_claim(llm),
    }
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _container(llm: LLMService, settings: Settings, mounts: list[Manifest]) -> Manifest:
    source = llm.spec.model.source
    if is_fetched(source):
        subject = llm.spec.model.uri
        env = transfer_environment(llm, settings, (subject.partition("://")[0],))
    else:
        subject, env = model_path(llm.spec), []
    return operator_container(
        settings,
        contract.INSPECT_CONTAINER,
        contract.INSPECT_COMMAND,
        args=[f"--model={subject}", f"--termination-log={contract.TERMINATION_LOG}"],
        env=env,
        resources=helper_resources(settings, INSPECT_LIMITS),
        volumeMounts=mounts,
        terminationMessagePath=contract.TERMINATION_LOG,
    )


def _near_the_claim(llm: LLMService) -> Manifest:
    """Placement for a model in a claim, whose volume only some nodes may reach: the service's selector and nodes.

    Empty for other models: the service's node selector is for accelerators.
    """
    if not isinstance(llm.spec.model.source, ClaimSource):
        return {}
    beside = {"labelSelector": {"matchLabels": selector(llm)}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": beside}]
    return {
        "nodeSelector": dict(llm.spec.pod_template.spec.node_selector),
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
    }
