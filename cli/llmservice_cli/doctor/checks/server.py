"""The API server: its version, and the webhooks that it asks about pods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from llmservice_cli.api import Json
from llmservice_cli.doctor.facts import Facts
from llmservice_cli.doctor.findings import Check, Finding, names, not_known, ok, problem

OLDEST = (1, 31)
"""As the chart's kubeVersion."""
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\D|$)")


def kubernetes(facts: Facts) -> Iterator[Finding]:
    found = _VERSION.match(facts.kubernetes)
    oldest = ".".join(map(str, OLDEST))
    if found is None:
        yield not_known(f"the API server says no version: {facts.kubernetes[:40]!r}", f"it has to be {oldest} or later")
    elif (int(found[1]), int(found[2])) < OLDEST:
        yield problem(f"Kubernetes {facts.kubernetes}", f"upgrade the cluster to {oldest} or later: the chart wants it")
    else:
        yield ok(f"Kubernetes {facts.kubernetes} answers")


def webhooks(facts: Facts) -> Iterator[Finding]:
    """Those that refuse pods while they do not answer. That there are some is common, and no fault."""
    found = [*blocking((*facts.validating, *facts.mutating))]
    silent = sorted(name for name, hook in found if facts.ready_hooks.get(service_of(hook)) == 0)
    if silent:
        yield problem(
            f"no pod can be created: nothing is ready behind these webhooks with failurePolicy Fail: {names(silent)}",
            "mend what they belong to, or remove its webhook configuration",
        )
    elif found:
        shown = names(sorted(name for name, _ in found))
        yield ok(
            f"no pod is created while one of these webhooks does not answer: {shown}",
            "look at them first where pods of services are missing",
        )
    else:
        yield ok("no webhook with failurePolicy Fail is asked about pods")


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


CHECKS = (
    Check("kubernetes", "the API server answers, in a version that the chart supports", (), kubernetes),
    Check(
        "webhooks",
        "webhooks with failurePolicy Fail that are asked about pods, and whether they can answer",
        ("validating", "mutating"),
        webhooks,
    ),
)
