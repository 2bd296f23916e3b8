"""The configuration files of the components, as text. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localcluster.network import BRIDGE, DNS_SERVICE, GATEWAY, NODE, PODS
from localcluster.paths import ClusterPaths

PAUSE = "registry.local/pause:1"


def _json(content: dict[str, Any]) -> str:
    """JSON is YAML, and needs no library."""
    return json.dumps(content, indent=1) + "\n"


def containerd(paths: ClusterPaths) -> str:
    return f"""version = 3
root = "{paths.containerd_root}"
state = "{paths.containerd_state}"
[grpc]
  address = "{paths.containerd_socket}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{paths.containerd}/opt"
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
    conf_dir = "{paths.cni_config}"
"""


def pod_network(paths: ClusterPaths) -> str:
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        # Named, because the plugin prefers nftables where it can, and then `down` would look in the wrong place.
        "ipMasqBackend": "iptables",
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            # With the sandboxes that hold the addresses: both are gone after a reboot.
            "dataDir": str(paths.runtime / "addresses"),
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}, "backend": "iptables"}
    return _json({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]})


def kubelet(paths: ClusterPaths) -> str:
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{paths.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{paths.pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{paths.pki}/kubelet.key",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            # Never by itself: no registry could give an image back.
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(paths.pod_logs),
            "volumePluginDir": str(paths.kubelet / "plugins"),
            # The tests change nodes and wait for what follows.
            "nodeStatusUpdateFrequency": "5s",
        }
    )


def kube_proxy(paths: ClusterPaths) -> str:
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(paths.kubeconfig_of("proxy"))},
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": NODE,
            "healthzBindAddress": "127.0.0.1:10256",
            # Zero is "leave the host's alone".
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
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
