"""API paths of kinds, keys of objects, and times (RFC 3339 in UTC, ending in Z) as Kubernetes writes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote


class Key(NamedTuple):
    """Namespace and name of an object; the key of queues and caches."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """A namespaced kind."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As in `kubectl api-resources` and RBAC messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path; without a namespace, of the collection over all namespaces."""
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
    """Path of the API server's proxy for a pod or Service; the request's own path follows."""
    return f"{resource.path(namespace)}/{quote(name, safe='')}:{port}/proxy"


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

STANDARD = (
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
)


def rfc3339(moment: datetime, timespec: str = "seconds") -> str:
    """metav1.Time with "seconds", metav1.MicroTime with "microseconds", truncated. `moment` must have a time zone."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
