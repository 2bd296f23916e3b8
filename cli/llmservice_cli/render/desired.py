"""The LLMService that a cluster would store once a manifest is applied: what the operator then decides about."""

from __future__ import annotations

from typing import Any

from llmservice_api import untrusted
from llmservice_api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_api.replicas_owner import STATED_BY, stated_by

from llmservice_cli.admission.check import stored
from llmservice_cli.errors import BadInput
from llmservice_cli.manifests import Json

NEW_UID = "assigned-by-the-api-server"
"""Of an LLMService that does not exist yet."""
_REPLICAS = "spec.scaling.replicas"


def namespace_of(manifest: Json, given: str | None, default: str) -> str:
    """The manifest's namespace, else the one given by -n, else the default. BadInput where the first two differ."""
    named = manifest["metadata"].get("namespace")
    if named and given and named != given:
        message = f"the manifest is of namespace {named}, and -n says {given}."
        raise BadInput.of("-n", message, "Leave one of them out.")
    return str(named or given or default)


def _stated_by(manifest: Json, live: Json) -> str | None:
    """Who would state spec.scaling.replicas once the manifest is applied."""
    if "replicas" in (manifest["spec"].get("scaling") or {}):
        return "this manifest"
    return stated_by(live)


def new(manifest: Json, namespace: str) -> dict[str, Any]:
    """As it would be stored first: with the CRD's defaults and without a status."""
    metadata = manifest["metadata"]
    return stored(manifest) | {
        STATED_BY: _stated_by(manifest, {}),
        "metadata": {
            "name": metadata["name"],
            "namespace": namespace,
            "uid": NEW_UID,
            "generation": 1,
            "annotations": dict(metadata.get("annotations") or {}),
        },
    }


def changed(manifest: Json, live: Json) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The live object with the manifest's spec, as far as the operator reads it, and notes on what stays of the live.

    Annotations that the manifest does not name stay, as with `kubectl apply`. So does the number of replicas: it may
    be an autoscaler's or `kubectl scale`'s. Every other field that the manifest leaves out gets its default.
    """
    made, notes = stored(manifest), []
    before = live.get("spec") or {}
    replicas = (before.get("scaling") or {}).get("replicas")
    if replicas is not None and "replicas" not in (manifest["spec"].get("scaling") or {}):
        made["spec"] = made["spec"] | {"scaling": made["spec"].get("scaling", {}) | {"replicas": replicas}}
        notes.append(f"{_REPLICAS} stays {replicas} as in the cluster: the manifest does not name it")
    metadata = dict(live["metadata"])
    annotations = {**(metadata.get("annotations") or {}), **(manifest["metadata"].get("annotations") or {})}
    requested = untrusted.annotation(annotations.get(UPDATE_REQUESTED_ANNOTATION))
    metadata["annotations"] = {} if requested is None else {UPDATE_REQUESTED_ANNOTATION: requested}
    if made["spec"] != before:
        metadata["generation"] = int(metadata.get("generation") or 0) + 1
    return made | {
        STATED_BY: _stated_by(manifest, live["metadata"]),
        "metadata": metadata,
        "status": untrusted.stored_status(live.get("status")),
    }, tuple(notes)
