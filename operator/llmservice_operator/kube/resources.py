"""The kinds that the operator touches, and where the API server keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from llmservice_api.child_kinds import CHILD_KINDS


@dataclass(frozen=True, slots=True)
class Resource:
    """One namespaced kind."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As manifests write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As `kubectl api-resources` and RBAC messages write it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path; without a namespace the collection over all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


def proxy_path(resource: Resource, namespace: str, name: str, port: int) -> str:
    """Where the API server forwards requests to a pod or Service; the path on the other side follows it."""
    return f"{resource.path(namespace)}/{quote(name, safe='')}:{port}/proxy"


LLMSERVICE = Resource("llmservice.dev", "v1alpha1", "llmservices", "LLMService")
DEPLOYMENT = Resource("apps", "v1", "deployments", "Deployment")
CONTROLLER_REVISION = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
SERVICE = Resource("", "v1", "services", "Service")
POD = Resource("", "v1", "pods", "Pod")
PVC = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap")
JOB = Resource("batch", "v1", "jobs", "Job")
ENDPOINT_SLICE = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
EVENT = Resource("", "v1", "events", "Event")
RESOURCE_QUOTA = Resource("", "v1", "resourcequotas", "ResourceQuota")
LEASE = Resource("coordination.k8s.io", "v1", "leases", "Lease")

ALL = (
    LLMSERVICE,
    DEPLOYMENT,
    CONTROLLER_REVISION,
    SERVICE,
    POD,
    PVC,
    CONFIG_MAP,
    JOB,
    ENDPOINT_SLICE,
    EVENT,
    RESOURCE_QUOTA,
    LEASE,
    *(Resource(child.group, child.version, child.plural, child.kind) for child in CHILD_KINDS),
)
BY_KIND: Mapping[str, Resource] = {resource.kind: resource for resource in ALL}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """The resource of a manifest; a kind that we do not know is a bug of ours."""
    resource = BY_KIND[manifest["kind"]]
    if resource.api_version != manifest["apiVersion"]:
        raise KeyError(f"{manifest['apiVersion']}/{manifest['kind']}")
    return resource
