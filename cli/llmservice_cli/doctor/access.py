"""The API server: its version, the webhooks that it asks about pods, and what it lets the user do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from llmservice_api.constants import GROUP, PLURAL

from llmservice_cli.api import Json, labels_of
from llmservice_cli.doctor.facts import Facts, Right
from llmservice_cli.installation import NAMESPACE

from .facts import LONGEST, Check, Finding, names, not_known, ok, problem, version_of, warning

OLDEST = (1, 31)
"""As the chart's kubeVersion."""
IMAGE_VOLUMES = (1, 35)
"""Where they are on by default; before, a feature gate of the API server and the kubelets turns them on."""
_NAME_LABEL = "kubernetes.io/metadata.name"
_MEND = "mend what they belong to, or remove its webhook configuration"


def kubernetes(facts: Facts) -> Iterator[Finding]:
    found = version_of(facts.kubernetes)
    oldest = ".".join(map(str, OLDEST))
    if found is None:
        yield not_known(f"the API server says no version: {facts.kubernetes[:40]!r}", f"it has to be {oldest} or later")
    elif found < OLDEST:
        yield problem(f"Kubernetes {facts.kubernetes}", f"upgrade the cluster to {oldest} or later: the chart wants it")
    else:
        gate = "; models and adapters from image:// need its feature gate ImageVolume"
        lacks = gate if found < IMAGE_VOLUMES else ""
        yield ok(f"Kubernetes {facts.kubernetes} answers{lacks}")


def webhooks(facts: Facts) -> Iterator[Finding]:
    """Those that refuse pods while they do not answer. That there are some is common, and no fault."""
    asked: list[str] = []
    certain: dict[str, list[str]] = {}
    possible: list[str] = []
    for name, hook in sorted(blocking((*facts.validating, *facts.mutating)), key=lambda one: one[0]):
        verdicts = {place: is_asked(hook, place, labels) for place, labels in _places(facts).items()}
        if all(verdict is False for verdict in verdicts.values()):
            continue
        asked.append(name)
        if facts.ready_hooks.get(service_of(hook)) != 0:
            continue
        for place, verdict in verdicts.items():
            if verdict:
                certain.setdefault(place, []).append(name)
        if True not in verdicts.values():
            where = ", ".join(place for place, verdict in verdicts.items() if verdict is None)
            possible.append(f"{name} with {'; '.join(conditions(hook))} in {where}")
    if certain:
        silent = names(name for place in certain.values() for name in place)
        yield problem(
            f"no pod can be created in {', '.join(certain)}: nothing is ready behind these webhooks with failurePolicy"
            f" Fail: {silent}",
            _MEND,
        )
    if possible:
        yield warning(
            f"pods may not be created: nothing is ready behind webhooks with failurePolicy Fail, and whether they are"
            f" asked is not known: {names(possible)}",
            f"see whether they select your pods; {_MEND}",
        )
    if asked and not certain and not possible:
        yield ok(
            f"no pod is created while one of these webhooks does not answer: {names(asked)}",
            "look at them first where pods of services are missing",
        )
    elif not asked:
        yield ok("no webhook with failurePolicy Fail is asked about pods of these namespaces")


def _places(facts: Facts) -> dict[str, Mapping[str, str] | None]:
    """Labels of the namespaces where pods are needed; None where they may not be read."""
    found: dict[str, Mapping[str, str] | None] = {}
    for field, read, wanted in (
        ("namespaces", facts.namespaces, (facts.namespace,)),
        ("operator_namespaces", facts.operator_namespaces, facts.operator_places),
    ):
        known = {str(each["metadata"]["name"]): labels_of(each) for each in read}
        for place in wanted:
            # Of a namespace that is yet to be made only the label of its name is known.
            labels = None if field in facts.unread else known.get(place, {_NAME_LABEL: place})
            found[place] = found.get(place) or labels
    return found


def is_asked(hook: Json, namespace: str, labels: Mapping[str, str] | None) -> bool | None:
    """Whether a webhook is asked about pods of a namespace with these labels; None: that is not known."""
    selector = hook.get("namespaceSelector") or {}
    if labels is None and {key for key, *_ in _requirements(selector)} <= {_NAME_LABEL}:
        labels = {_NAME_LABEL: namespace}
    if labels is not None and not is_match(selector, labels):
        return False
    is_on_conditions = any(_requirements(hook.get("objectSelector") or {})) or hook.get("matchConditions")
    return None if labels is None or is_on_conditions else True


def is_match(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects an object with these labels."""
    return all(
        {
            "In": key in labels and labels[key] in values,
            "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(operator, True)
        for key, operator, values in _requirements(selector)
    )


def _requirements(selector: Json) -> Iterator[tuple[str, str, list[str]]]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield key, "In", [value]
    for each in selector.get("matchExpressions") or ():
        yield str(each.get("key")), str(each.get("operator")), each.get("values") or []


def conditions(hook: Json) -> Iterator[str]:
    """What decides whether a webhook is asked, as one writes it."""
    for field in ("namespaceSelector", "objectSelector"):
        if required := [_requirement(*each) for each in _requirements(hook.get(field) or {})]:
            yield f"{field} {', '.join(required)}"[:LONGEST]
    if found := [str(each.get("name")) for each in hook.get("matchConditions") or ()]:
        yield f"matchConditions {names(found)}"[:LONGEST]


def _requirement(key: str, operator: str, values: list[str]) -> str:
    if operator == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    return f"{key} {operator} ({', '.join(values)})" if values else f"{key} {operator}"


def blocking(configurations: Iterable[Json]) -> Iterator[tuple[str, Json]]:
    """The name and the webhook of each without which no pod is created."""
    for each in configurations:
        for hook in each.get("webhooks") or ():
            if hook.get("failurePolicy", "Fail") == "Fail" and _is_of_pods(hook):
                yield f"{each['metadata']['name']} ({hook.get('name', '')})", hook


def service_of(hook: Json) -> tuple[str, str]:
    """Namespace and name of the Service that is asked; empty where it is a URL."""
    found = (hook.get("clientConfig") or {}).get("service") or {}
    return str(found.get("namespace") or ""), str(found.get("name") or "")


def _is_of_pods(hook: Json) -> bool:
    return any(
        {"", "*"} & {*(rule.get("apiGroups") or ())}
        and {"pods", "*", "*/*"} & {*(rule.get("resources") or ())}
        and {"CREATE", "*"} & {*(rule.get("operations") or ())}
        for rule in hook.get("rules") or ()
    )


# What the user may do: what teams need, and what installing needs.

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
    Check("kubernetes", "the API server answers, in a version that the chart supports", (), kubernetes),
    Check(
        "webhooks",
        "webhooks with failurePolicy Fail that are asked about pods, and whether they can answer",
        ("validating", "mutating"),
        webhooks,
    ),
    Check("rights", "what application teams need in the namespace", ("rights",), team),
    Check("rights to install", "CRDs, cluster roles, admission policies, Deployments", ("rights",), installing),
)
