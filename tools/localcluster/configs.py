"""The configuration files of the components, as text. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localcluster.network import BRIDGE, DNS_SERVICE, GATEWAY
from localcluster.paths import ClusterPaths
from localcluster.place import Place

PAUSE = "registry.local/pause:1"


def _json(content: dict[str, Any]) -> str:
    """JSON is YAML, and needs no library."""
    return json.dumps(content, indent=1) + "\n"


def containerd(paths: ClusterPaths, place: Place) -> str:
    return f"""version = 3
root = "{place.containerd_root}"
state = "{place.containerd_state}"
[grpc]
  address = "{place.containerd_socket}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{place.containerd}/opt"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE (a container, some virtual machines) runc may not lower a process's score.
  restrict_oom_score_adj = true
  # Under our own folder, so that `down` finds them after any crash.
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{paths.bin}/runc"
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{paths.cni_bin}"]
    conf_dir = "{place.cni_config}"
"""


def pod_network(place: Place) -> str:
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        # Only the host reaches the world; a node behind it hides no pod from the others.
        "ipMasq": place.link is None,
        # Named, because the plugin prefers nftables where it can, and then `down` would look in the wrong place.
        "ipMasqBackend": "iptables",
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(place.addresses),
            "ranges": [[{"subnet": place.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}, "backend": "iptables"}
    return _json({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]})


def kubelet(paths: ClusterPaths, place: Place) -> str:
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": place.cgroup_root,
            "containerRuntimeEndpoint": f"unix://{place.containerd_socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{paths.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{paths.pki}/{place.kubelet_identity}.crt",
            "tlsPrivateKeyFile": f"{paths.pki}/{place.kubelet_identity}.key",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "evictionHard": dict(place.eviction),
            # A minute by default: how long an exchanged Secret or ConfigMap takes to reach the pods that mount it.
            "syncFrequency": "10s",
            # Five minutes by default, which no test of an eviction would wait for.
            "evictionPressureTransitionPeriod": "5s",
            # Never by itself: no registry could give an image back.
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(place.pod_logs),
            "volumePluginDir": str(place.kubelet / "plugins"),
            # The tests change nodes and wait for what follows.
            "nodeStatusUpdateFrequency": "5s",
            # Renewed every quarter of it; the controller manager's patience with a silent node goes with it.
            "nodeLeaseDurationSeconds": 20,
        }
    )


def kube_proxy(paths: ClusterPaths, place: Place) -> str:
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(paths.kubeconfig_of(place.proxy_identity))},
            "mode": "iptables",
            "clusterCIDR": place.pods,
            "hostnameOverride": place.name,
            # Asked by us, from the host.
            "healthzBindAddress": place.proxy_health,
            # Zero is "leave the host's alone".
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "0s"},
        }
    )


def simulation() -> str:
    return (Path(__file__).resolve().parent / "kwok-stages.yaml").read_text()


def audit_policy() -> str:
    """Who asked what of which object; no bodies, so no secrets in the log."""
    return _json(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "users": ["system:apiserver"]},
                {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
                {"level": "Metadata"},
            ],
        }
    )


def upstream(resolv_conf: str) -> tuple[str, ...]:
    """The machine's own name servers; none when it has none, as in an isolated network."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return tuple(words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")


def corefile(paths: ClusterPaths, servers: tuple[str, ...]) -> str:
    forward = f"  forward . {' '.join(servers)}\n" if servers else ""
    return f""".:53 {{
  bind {GATEWAY}
  errors
  ready 127.0.0.1:10653
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {paths.kubeconfig_of("dns")}
    fallthrough in-addr.arpa ip6.arpa
    ttl 5
  }}
{forward}  cache 5
}}
"""
