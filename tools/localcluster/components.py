"""What runs: the command line of each component. Pure."""

from __future__ import annotations

from localcluster.network import GATEWAY, SERVICES
from localcluster.paths import ClusterPaths
from localcluster.pki import FRONT_PROXY
from localcluster.place import Place
from localcluster.processes import Component

CLIENT_LIMITS = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""What is measured with thousands of services is not the controllers' own default of 20 requests a second."""
ETCD = "http://127.0.0.1:2379"


def etcd(paths: ClusterPaths) -> Component:
    return Component(
        "etcd",
        (
            f"{paths.bin}/etcd",
            f"--data-dir={paths.etcd}",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            "--log-level=warn",
        ),
    )


def apiserver(paths: ClusterPaths) -> Component:
    pki = paths.pki
    return Component(
        "kube-apiserver",
        (
            f"{paths.bin}/kube-apiserver",
            f"--etcd-servers={ETCD}",
            "--secure-port=6443",
            f"--advertise-address={GATEWAY}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            # For APIs that other servers answer, as KEDA's metrics.
            f"--requestheader-client-ca-file={pki}/ca.crt",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy.crt",
            f"--proxy-client-key-file={pki}/front-proxy.key",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            # Else `kubectl logs` looks the node's name up in DNS, which does not know it.
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={paths.config}/audit.json",
            f"--audit-log-path={paths.audit_log}",
            "--audit-log-maxsize=64",
            "--audit-log-maxbackup=2",
        ),
        (paths.config / "audit.json", pki / "apiserver.crt"),
    )


def controller_manager(paths: ClusterPaths) -> Component:
    return Component(
        "kube-controller-manager",
        (
            f"{paths.bin}/kube-controller-manager",
            f"--kubeconfig={paths.kubeconfig_of('controller-manager')}",
            f"--service-account-private-key-file={paths.pki}/sa.key",
            f"--root-ca-file={paths.pki}/ca.crt",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *CLIENT_LIMITS,
            # Half the usual: four renewals of a node's lease missed, and looked at often.
            "--node-monitor-grace-period=24s",
            "--node-monitor-period=2s",
        ),
    )


def scheduler(paths: ClusterPaths) -> Component:
    return Component(
        "kube-scheduler",
        (
            f"{paths.bin}/kube-scheduler",
            f"--kubeconfig={paths.kubeconfig_of('scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *CLIENT_LIMITS,
        ),
    )


def containerd(paths: ClusterPaths, place: Place) -> Component:
    return Component(
        place.component("containerd"),
        (f"{paths.bin}/containerd", "--config", str(place.containerd_config)),
        (place.containerd_config,),
    )


def kubelet(paths: ClusterPaths, place: Place) -> Component:
    return Component(
        place.component("kubelet"),
        (
            f"{paths.bin}/kubelet",
            f"--kubeconfig={paths.kubeconfig_of(place.kubelet_identity)}",
            f"--config={place.kubelet_config}",
            f"--root-dir={place.kubelet}",
            f"--hostname-override={place.name}",
            f"--node-ip={place.gateway}",
        ),
        (place.kubelet_config,),
    )


def kube_proxy(paths: ClusterPaths, place: Place) -> Component:
    return Component(
        place.component("kube-proxy"),
        (f"{paths.bin}/kube-proxy", f"--config={place.proxy_config}"),
        (place.proxy_config,),
    )


def coredns(paths: ClusterPaths) -> Component:
    config = paths.config / "Corefile"
    return Component("coredns", (f"{paths.bin}/coredns", "-conf", str(config)), (config,))


def kwok(paths: ClusterPaths) -> Component:
    return Component(
        "kwok",
        (
            f"{paths.bin}/kwok",
            f"--config={paths.config}/kwok.yaml",
            f"--kubeconfig={paths.kubeconfig}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector=type=kwok",
            "--node-lease-duration-seconds=40",
            "--server-address=127.0.0.1:10247",
        ),
        (paths.config / "kwok.yaml",),
    )
