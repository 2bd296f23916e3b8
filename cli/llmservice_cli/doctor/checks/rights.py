"""What the user may do: what teams need, and what installing needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmservice_api.constants import GROUP, PLURAL

from llmservice_cli.doctor.facts import Facts, Right
from llmservice_cli.doctor.findings import Check, Finding, names, ok, problem, warning
from llmservice_cli.installation import NAMESPACE

TEAM = (
    Right("get", GROUP, PLURAL),
    Right("list", GROUP, PLURAL),
    Right("create", GROUP, PLURAL),
    Right("patch", GROUP, PLURAL),
    Right("list", "", "pods"),
    Right("get", "", "pods", "log"),
    Right("get", "", "pods", "proxy"),
)
"""In the namespace of a team; the chart's `rbac.aggregate` adds those on LLMServices to view, edit and admin."""
INSTALLING = (
    Right("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    Right("create", "rbac.authorization.k8s.io", "clusterroles"),
    Right("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    Right("create", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
    Right("create", "apps", "deployments", namespace=NAMESPACE),
)


def team(facts: Facts) -> Iterator[Finding]:
    """Each command says itself which right it needs: a missing one is no problem of the cluster."""
    missing = [str(right) for right in TEAM if not facts.rights.get(replace(right, namespace=facts.namespace), False)]
    who = facts.user or "you"
    if missing:
        yield warning(
            f"{who} may not {names(missing)} in the namespace {facts.namespace}",
            f"bind the cluster role edit there: kubectl create rolebinding NAME -n {facts.namespace} --clusterrole=edit"
            " --user=USER (it holds the rights on LLMServices where the chart has rbac.aggregate)",
        )
    else:
        yield ok(f"{who} may serve models in the namespace {facts.namespace}: read, apply, logs, figures")


def installing(facts: Facts) -> Iterator[Finding]:
    """Without an operator somebody has to install it; with one only upgrades need these."""
    missing = [str(right) for right in INSTALLING if not facts.rights.get(right, False)]
    if not missing:
        yield ok("you may install and upgrade the operator")
    elif facts.is_installed:
        yield ok(f"upgrading the operator needs rights that you do not have: {names(missing)}")
    else:
        yield problem(
            f"you may not install the operator: {names(missing)}",
            "have a cluster administrator install it (docs/install.md), or bind the cluster role cluster-admin to you",
        )


CHECKS = (
    Check("rights", "what application teams need in the namespace", ("rights",), team),
    Check("rights to install", "CRDs, cluster roles, admission policies, Deployments", ("rights",), installing),
)
