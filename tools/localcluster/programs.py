"""The programs of the cluster, its tests and releases, one row each; `builds.py` says which go.mod each group has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

KUBERNETES = "1.37.2"
"""Of the cluster."""
OLDEST_KUBERNETES = "1.31.14"
"""Of the control plane that shows what the operator says of the oldest Kubernetes (controlplane.py)."""


def build_flags(kubernetes: str = KUBERNETES) -> tuple[str, ...]:
    """Of every `go build`; what of Kubernetes is in the program says that it is this version."""
    major, minor, _ = kubernetes.split(".")
    linked = (
        # Without line and symbol tables the linker has half as much to write; nobody debugs these programs here.
        "-s -w",
        f"-X k8s.io/component-base/version.gitVersion=v{kubernetes}",
        f"-X k8s.io/component-base/version.gitMajor={major}",
        f"-X k8s.io/component-base/version.gitMinor={minor}",
        f"-X k8s.io/client-go/pkg/version.gitVersion=v{kubernetes}",
    )
    return ("-trimpath", "-ldflags", " ".join(linked))


class Group(StrEnum):
    """What is built together. Image builds need the first group only, and go on while the second compiles."""

    IMAGES = "images"
    CLUSTER = "cluster"
    SIMULATION = "simulation"
    # The control plane of the oldest Kubernetes that the operator is for, in make test-full only.
    OLDEST_KUBERNETES = "oldest-kubernetes"
    # For tests of s3:// only. Its dependencies are the cluster's own in other versions, so it has a go.mod of its own.
    OBJECT_STORE = "object-store"
    # The same for gs://, in make test-full only.
    GOOGLE_STORE = "google-store"
    # What deployment tools make of an LLMService, for tests: kstatus and Argo CD's Lua machine; Argo CD's own engine.
    HEALTH = "health"
    ARGOCD = "argocd"
    # Argo CD itself: one program that is its application controller and its repository server.
    ARGOCD_CONTROLLERS = "argocd-controllers"
    # What `make release` signs, describes and looks up with; the registry of its tests; the check of its workflow.
    # Tests that sign nothing do without the first, which takes minutes.
    RELEASE = "release"
    CRANE = "crane"
    REGISTRY = "registry"
    WORKFLOWS = "workflows"
    # Helm alone, for machines that make releases and run no cluster. Never linked beside the cluster's.
    HELM = "helm"
    # What `make bench-fetch` measures beside our fetch.
    FETCH = "fetch"
    # KEDA's three programs, for the tests of autoscaling: in an image.
    KEDA = "keda"
    # LeaderWorkerSet's controller, for the tests of replicas over several nodes: in an image.
    LWS = "lws"
    # Flux's controllers of sources and of Kustomizations, for the tests of GitOps: processes of this machine.
    FLUX = "flux"
    # The endpoint picker of the Gateway API's inference extension, for tests of Gateways: a process of this machine.
    ENDPOINT_PICKER = "endpoint-picker"
    # CRDs of Envoy Gateway and Envoy AI Gateway: no program of theirs is built.
    ENVOY_GATEWAY = "envoy-gateway"
    # A real Prometheus and promtool, for the tests of rules, dashboards and metrics pages.
    PROMETHEUS = "prometheus"
    # What makes its configuration from monitors and rules in a cluster: in an image.
    PROMETHEUS_OPERATOR = "prometheus-operator"
    # What enforces NetworkPolicies, for the tests of ours: a process of each node.
    NETWORK_POLICIES = "network-policies"


class Folder(StrEnum):
    """Where a program is linked: PATH, or the folder where containerd looks for network plugins."""

    BIN = "bin"
    CNI = "cni"


@dataclass(frozen=True)
class Program:
    name: str
    package: str
    group: Group
    folder: Folder = Folder.BIN
    cgo: bool = False
    tags: tuple[str, ...] = ()
    # Its version, for programs that write it into what they make. go.mod has it too, so the hash needs no second one.
    version: str = field(default="", repr=False)

    @property
    def built_name(self) -> str:
        """What `go build -o FOLDER/` calls it: the last part of the path that is not a major version."""
        parts = self.package.split("/")
        return parts[-2] if parts[-1].startswith("v") and parts[-1][1:].isdigit() else parts[-1]


_INFERENCE_EXTENSION = "sigs.k8s.io/gateway-api-inference-extension"
_PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator/cmd"
_CONTAINERD_TAGS = ("no_btrfs", "no_devmapper", "no_zfs")


def _containerd(name: str) -> Program:
    return Program(name, f"github.com/containerd/containerd/v2/cmd/{name}", Group.IMAGES, tags=_CONTAINERD_TAGS)


def _buildkit(name: str) -> Program:
    return Program(name, f"github.com/moby/buildkit/cmd/{name}", Group.IMAGES, tags=_CONTAINERD_TAGS)


def _kubernetes(name: str, group: Group = Group.CLUSTER) -> Program:
    return Program(name, f"k8s.io/kubernetes/cmd/{name}", group)


def _keda(name: str, command: str) -> Program:
    return Program(name, f"github.com/kedacore/keda/v2/cmd/{command}", Group.KEDA)


def _prometheus(name: str) -> Program:
    # Of two dozen ways to discover targets, Kubernetes alone: the cloud providers' packages are most of the build.
    tags = ("remove_all_sd", "enable_kubernetes_sd")
    return Program(name, f"github.com/prometheus/prometheus/cmd/{name}", Group.PROMETHEUS, tags=tags)


def _plugin(kind: str, name: str) -> Program:
    package = f"github.com/containernetworking/plugins/plugins/{kind}/{name}"
    return Program(name, package, Group.CLUSTER, Folder.CNI)


PROGRAMS: tuple[Program, ...] = (
    _containerd("containerd"),
    _containerd("containerd-shim-runc-v2"),
    _containerd("ctr"),
    # runc enters namespaces in C, and without libseccomp it refuses every pod that asks for RuntimeDefault.
    Program("runc", "github.com/opencontainers/runc", Group.IMAGES, cgo=True, tags=("seccomp",)),
    _buildkit("buildkitd"),
    _buildkit("buildctl"),
    Program("etcd", "go.etcd.io/etcd/server/v3", Group.CLUSTER),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    _kubernetes("kubectl"),
    Program("coredns", "./cmd/coredns", Group.CLUSTER),
    Program("helm", "helm.sh/helm/v4/cmd/helm", Group.CLUSTER),
    _plugin("main", "bridge"),
    _plugin("main", "loopback"),
    _plugin("ipam", "host-local"),
    _plugin("meta", "portmap"),
    Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", Group.SIMULATION),
    _kubernetes("kube-apiserver", Group.OLDEST_KUBERNETES),
    _kubernetes("kube-controller-manager", Group.OLDEST_KUBERNETES),
    _kubernetes("kube-scheduler", Group.OLDEST_KUBERNETES),
    Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", Group.OBJECT_STORE),
    Program("fake-gcs-server", "github.com/fsouza/fake-gcs-server", Group.GOOGLE_STORE),
    Program("health", "./cmd/health", Group.HEALTH),
    Program("argocd-health", "./cmd/argocd-health", Group.ARGOCD),
    Program("argocd", "github.com/argoproj/argo-cd/v3/cmd", Group.ARGOCD_CONTROLLERS),
    Program("cosign", "github.com/sigstore/cosign/v3/cmd/cosign", Group.RELEASE),
    Program("crane", "github.com/google/go-containerregistry/cmd/crane", Group.CRANE),
    Program("syft", "github.com/anchore/syft/cmd/syft", Group.RELEASE, version="1.52.0"),
    Program("registry", "github.com/distribution/distribution/v3/cmd/registry", Group.REGISTRY),
    Program("helm", "helm.sh/helm/v4/cmd/helm", Group.HELM),
    Program("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", Group.WORKFLOWS),
    Program("s5cmd", "github.com/peak/s5cmd/v2", Group.FETCH),
    _keda("keda", "operator"),
    _keda("keda-adapter", "adapter"),
    _keda("keda-admission-webhooks", "webhooks"),
    Program("lws-manager", "sigs.k8s.io/lws/cmd", Group.LWS),
    Program("epp", f"{_INFERENCE_EXTENSION}/cmd/epp", Group.ENDPOINT_PICKER),
    Program("source-controller", "github.com/fluxcd/source-controller", Group.FLUX),
    Program("kustomize-controller", "github.com/fluxcd/kustomize-controller", Group.FLUX),
    _prometheus("prometheus"),
    _prometheus("promtool"),
    Program("prometheus-operator", f"{_PROMETHEUS_OPERATOR}/operator", Group.PROMETHEUS_OPERATOR),
    Program(
        "prometheus-config-reloader", f"{_PROMETHEUS_OPERATOR}/prometheus-config-reloader", Group.PROMETHEUS_OPERATOR
    ),
    Program("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router", Group.NETWORK_POLICIES),
)


@dataclass(frozen=True)
class Build:
    """One `go build`: programs that share cgo and tags compile what they share once."""

    programs: tuple[Program, ...]
    cgo: bool
    tags: tuple[str, ...]
    version: str = ""
    kubernetes: str = KUBERNETES

    def command(self, go: str, output: str) -> tuple[str, ...]:
        tags = ("-tags", ",".join(self.tags)) if self.tags else ()
        *flags, linked = build_flags(self.kubernetes)
        version = f" -X main.version={self.version}" if self.version else ""
        packages = tuple(program.package for program in self.programs)
        return (go, "build", "-v", *flags, linked + version, *tags, "-o", output, *packages)


def of_group(group: Group, programs: Iterable[Program] = PROGRAMS) -> tuple[Program, ...]:
    return tuple(program for program in programs if program.group == group)


def builds_of(programs: Iterable[Program]) -> tuple[Build, ...]:
    shared: dict[tuple[bool, tuple[str, ...], str, str], list[Program]] = {}
    for program in programs:
        settings = (program.cgo, program.tags, program.version, _kubernetes_of(program.group))
        shared.setdefault(settings, []).append(program)
    return tuple(Build(tuple(members), *settings) for settings, members in shared.items())


def _kubernetes_of(group: Group) -> str:
    return OLDEST_KUBERNETES if group is Group.OLDEST_KUBERNETES else KUBERNETES


def content_hash(sources: Mapping[str, bytes], programs: Iterable[Program], architecture: str) -> str:
    """Names the folder of the built programs: what could change them changes it, and nothing else does."""
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name}\0{len(sources[name])}\0".encode())
        digest.update(sources[name])
    for program in programs:
        digest.update(f"{program}\0".encode())
    digest.update(f"{build_flags()}\0{architecture}".encode())
    return digest.hexdigest()[:16]
