"""`llmservice doctor` on the cluster's DNS: how long a router follows late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.doctor.dns import dns
from llmservice_cli.doctor.facts import Finding, Level

from tests.unit.api_server import ApiServer
from tests.unit.cli.doctor_world import HEALTHY, service
from tests.unit.cli.test_doctor_pickers import api
from tests.unit.cli_world import SERVICES, Command, Json

__all__ = ["api"]
ROUTED = service(routing={"mode": "router"})
KUBEADM = """.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 CACHE
    loop
    reload
    loadbalance
}
"""
"""As kubeadm makes it, from 1.31 on with `disable` in the braces of cache."""
OLD = KUBEADM.replace(" CACHE", "")
NEW = KUBEADM.replace(
    " CACHE",
    """{
       disable success cluster.local
       disable denial cluster.local
    }""".replace("{", " {"),
)
LOCAL = """cluster.local:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind 169.254.20.10
    forward . 10.96.0.10 {
            force_tcp
    }
}
.:53 {
    cache 30
    forward . /etc/resolv.conf
}
"""


def checked(coredns: str, local: str | None = None) -> Finding:
    (found,) = dns(replace(HEALTHY, services=(ROUTED,), dns=configs(coredns, local)))
    return found


def configs(coredns: str, local: str | None = None) -> tuple[Json, ...]:
    texts = {"coredns": coredns} | ({} if local is None else {"node-local-dns": local})
    return tuple({"metadata": {"name": name}, "data": {"Corefile": text}} for name, text in texts.items())


KEPT: dict[str, tuple[str, str | None, int]] = {
    "kubeadm until 1.30": (OLD, None, 30),
    "kubeadm from 1.31 on": (NEW, None, 0),
    "and with NodeLocal DNSCache": (NEW, LOCAL, 30),
    "records of 5 s": (OLD.replace("ttl 30", "ttl 5"), LOCAL, 5),
    "CoreDNS' own time of records": (OLD.replace("ttl 30", ""), LOCAL, 5),
    "a cache of 5 s": (OLD.replace("cache 30", "cache 5"), None, 5),
    "no cache": (OLD.replace("cache 30", ""), None, 0),
    "a cache without a time": (OLD.replace("cache 30", "cache"), None, 30),
    "nothing kept of any zone": (NEW.replace("success cluster.local", "success"), None, 0),
    "nothing kept of another zone": (NEW.replace("success cluster.local", "success example.com"), None, 30),
    "another domain": (
        OLD.replace("cluster.local", "corp.example"),
        LOCAL.replace("cluster.local", "corp.example"),
        30,
    ),
    "a local cache of another domain": (NEW, LOCAL.replace("cluster.local:53", "corp.example:53"), 0),
    "comments": (OLD.replace("    cache 30", "    # cache 30"), None, 0),
    "a server of the domain alone": (
        OLD.replace(".:53", "dns://cluster.local.:53").replace("kubernetes cluster.local in-addr.arpa", "kubernetes"),
        LOCAL,
        30,
    ),
}


@pytest.mark.parametrize(("coredns", "local", "seconds"), KEPT.values(), ids=KEPT)
def test_how_long_a_replica_that_is_gone_is_named(coredns: str, local: str | None, seconds: int) -> None:
    found = checked(coredns, local)
    assert f"for up to {seconds} s" in found.evidence
    assert found.level is (Level.OK if seconds <= 5 else Level.WARNING)
    assert ("team/chat" in found.evidence) is ("ttl 5" in found.remedy) is (seconds > 5)


@pytest.mark.parametrize("corefile", ["", "}\n}\n{", "kubernetes cluster.local", ".:53 {\n cache 30\n}"])
def test_another_dns_is_not_known(corefile: str) -> None:
    assert checked(corefile).level is Level.NOT_KNOWN


@given(st.lists(st.sampled_from([*KUBEADM.split(), *LOCAL.split(), "{\n", "}\n", "\n", "9" * 5000]), max_size=60))
def test_any_corefile_is_read(words: list[str]) -> None:
    assert checked(" ".join(words), " ".join(reversed(words)))


async def about_dns(llmservice: Command) -> list[Json]:
    ran = await llmservice.within("doctor", "-o", "json")
    return [each for each in ran.json["findings"] if each["check"] == "dns"]


async def test_the_dns_of_a_cluster(api: ApiServer, llmservice: Command) -> None:
    at = "/api/v1/namespaces/kube-system/configmaps"
    for found in configs(NEW, LOCAL):
        api.objects[f"{at}/{found['metadata']['name']}"] = found
    api.answers[f"{at}/coredns"] = 403
    (of_pool,) = await about_dns(llmservice)
    assert (of_pool["level"], of_pool["evidence"]) == ("ok", "no LLMService in team has a router"), (
        "and nothing is read"
    )
    api.objects[f"{SERVICES}/chat"] = ROUTED
    (refused,) = await about_dns(llmservice)
    assert (refused["level"], "no right to get configmaps" in refused["evidence"]) == ("not known", True)
    del api.answers[f"{at}/coredns"]
    (found,) = await about_dns(llmservice)
    assert (found["level"], "for up to 30 s" in found["evidence"]) == ("warning", True)
