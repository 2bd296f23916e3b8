"""The Job that looks at a model before there is any pod for it: its config.json, and the headers of its weights.

A Job and not the operator itself: it has the Secrets, the claims, the service account and the network of the service's
namespace, of which the operator has none. It reads some kilobytes, needs no accelerator, and is gone when what it found
is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmservice_runtime import contract

from llmservice_operator.api.service import LLMService
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.api.uri import BucketSource, ClaimSource, FileSource, HubSource, ImageSource, is_fetched
from llmservice_operator.build.environment import EnvVar, for_inspection, is_for_transfers
from llmservice_operator.build.meta import INSPECTS_LABEL, Manifest, digest, labels, metadata, selector
from llmservice_operator.build.placement import tolerations
from llmservice_operator.build.resources import Resources
from llmservice_operator.build.security import CONTAINER_SECURITY, pod_security
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.sources import model_path, store
from llmservice_operator.build.volumes import Mounted, ca_bundle, small_guests, source_volume

DEADLINE_SECONDS = 120
"""From the Job's creation on, pulling its image and the inspection's own 100 s included."""
_NAME_BYTES = 63
"""Of a Job, since its name is a label's value too."""
_RESOURCES: Resources = {
    "requests": {"cpu": "50m", "memory": "64Mi"},
    # The headers of a model of hundreds of shards, several at once.
    "limits": {"cpu": "1", "memory": "512Mi"},
}

# The root file system is read-only, and the libraries that read hubs make folders.
_SCRATCH = Mounted("tmp", {"emptyDir": {"sizeLimit": "64Mi"}}, contract.TMP_DIR)


def is_wanted(llm: LLMService) -> bool:
    """Whether a look costs some kilobytes: into the runtime's image only that image itself can look, and an image of a
    model is pulled whole, by whatever node the Job's pod comes to."""
    return not isinstance(llm.spec.model.source, FileSource | ImageSource)


def inspection_key(spec: LLMServiceSpec) -> str:
    """A hash of what is looked at, and with which rights; nothing else in the spec calls for another look."""
    fields = {"uri", "hf_token_secret_ref", "s3", "gcs", "azure"}
    model = spec.model.model_dump(mode="json", include=fields, exclude_defaults=True)
    variables = [variable for variable in spec.runtime.env if is_for_transfers(variable["name"])]
    return digest([model, variables if is_fetched(spec.model.source) else []])


def job_name(llm: LLMService) -> str:
    """NAME-inspect-HASH, of this very LLMService: one of the same name made later has another."""
    ending = f"-inspect-{digest([llm.uid, inspection_key(llm.spec)])}"
    return llm.name[: _NAME_BYTES - len(ending)].rstrip("-.") + ending


def job(llm: LLMService, settings: Settings) -> Manifest:
    """The whole manifest."""
    meta = metadata(llm, job_name(llm))
    own = {**labels(llm), "app.kubernetes.io/component": "inspection"}
    # No Service, budget or Deployment of ours may select this pod: they go by the label that it does not have.
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
    given = llm.spec.pod_template.spec
    scratch = [_SCRATCH] if is_fetched(llm.spec.model.source) else []
    mounted = [*_source(llm), *ca_bundle(settings), *scratch]
    guests, mounts = small_guests(llm)
    secrets = [{"name": name} for name in settings.image_pull_secrets]
    spec: Manifest = {
        "containers": [_container(llm, settings, mounted, mounts)],
        "volumes": [m.volume() for m in mounted] + guests,
        "securityContext": pod_security(llm, settings),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": tolerations(llm),
        "serviceAccountName": given.service_account_name,
        "imagePullSecrets": secrets + [s for s in llm.spec.runtime.image_pull_secrets if s not in secrets],
        **_near_the_claim(llm),
    }
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _container(llm: LLMService, settings: Settings, mounted: list[Mounted], guests: list[dict[str, Any]]) -> Manifest:
    model = llm.spec.model
    subject = model.uri if is_fetched(model.source) else model_path(llm.spec)
    container: Manifest = {
        "name": contract.INSPECT_CONTAINER,
        "image": settings.operator_image,
        "command": list(contract.INSPECT_COMMAND),
        "args": [f"--model={subject}", f"--termination-log={contract.TERMINATION_LOG}"],
        "env": list(_environment(llm, settings)),
        "resources": _RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [m.mount() for m in mounted] + guests,
        "terminationMessagePath": contract.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if settings.image_pull_policy is not None:
        container["imagePullPolicy"] = settings.image_pull_policy
    return container


def _environment(llm: LLMService, settings: Settings) -> Iterator[EnvVar]:
    """What the server would reach its model with; nothing of what it does not need for that."""
    source = llm.spec.model.source
    bucket = source.scheme if isinstance(source, BucketSource) else None
    yield from for_inspection(llm, settings, hub=isinstance(source, HubSource), bucket=bucket)


def _source(llm: LLMService) -> Iterator[Mounted]:
    at = store(llm.spec.model.source)
    if at is not None:
        yield Mounted(
            "source", source_volume(at, llm.spec.runtime.image_pull_policy), contract.SOURCE_DIR, read_only=True
        )


def _near_the_claim(llm: LLMService) -> Manifest:
    """A claim's volume may be on some nodes only, or attached to the one where the service runs already.

    Elsewhere the service's node selector does not count: it says where accelerators are.
    """
    if not isinstance(llm.spec.model.source, ClaimSource):
        return {}
    beside = {"labelSelector": {"matchLabels": selector(llm)}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": beside}]
    return {
        "nodeSelector": dict(llm.spec.pod_template.spec.node_selector),
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
    }
