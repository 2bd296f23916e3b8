"""The settings of the operator in a cluster, from its ConfigMap where the user may read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from kubeloop.errors import Forbidden
from kubeloop.resources import CONFIG_MAP
from llmservice_operator.manifests.settings import InvalidSettings, Settings
from llmservice_operator.options import version

from llmservice_cli.api import Api, Json
from llmservice_cli.installation import releases
from llmservice_cli.render import settings

_VERSION_LABEL = "app.kubernetes.io/version"
_FILE = "settings.yaml"
_LARGEST = 64 * 1024
"""Characters; the chart's file has some thousand."""
_MOST_OPERATORS = 16
_LONGEST_REASON = 300
_UNCONFIRMED = "(no ClusterRoleBinding that you may list says that an operator is installed there)"
_GIVE = f"; give {settings.OPTION} if the installation has its own"


async def settings_of(kube: Api, namespace: str) -> tuple[Settings, str]:
    """Those of the operator that watches a namespace, and a note that says where they are from, or what is assumed.

    Anybody may make a ConfigMap with the chart's label in a namespace of theirs, so one counts only in a namespace to
    which a ClusterRoleBinding of the chart gives rights, where the user may read those and there are any.
    """
    try:
        found_releases = await releases(kube)
        labelled = await kube.list_all(CONFIG_MAP, None, label_selector=found_releases.selector)
    except Forbidden:
        return settings.defaults(), f"settings: the chart's defaults, since you may not read the operator's{_GIVE}"
    installed = found_releases.namespaces
    candidates = [item for item in labelled if not installed or item["metadata"]["namespace"] in installed]
    found = [item for item in candidates[:_MOST_OPERATORS] if _watches(item, namespace)]
    if len(found) != 1:
        why = "no operator's settings are found" if not found else f"{len(found)} operators watch this namespace"
        return settings.defaults(), f"settings: the chart's defaults, since {why}{_GIVE}"
    metadata = found[0]["metadata"]
    place = f"ConfigMap {metadata['namespace']}/{metadata['name']}"
    try:
        read = settings.of_text(found[0]["data"][_FILE])
    except InvalidSettings as invalid:
        why = "".join(letter if letter.isprintable() else "?" for letter in str(invalid)[:_LONGEST_REASON])
        return settings.defaults(), f"settings: the chart's defaults, since {place} cannot be read: {why}{_GIVE}"
    unconfirmed = () if installed else (_UNCONFIRMED,)
    return read, " ".join([f"settings: {place}", *unconfirmed, *_other_version(metadata)])


def _watches(item: Json, namespace: str) -> bool:
    """Whether it is the settings file of an operator of all namespaces, or of this one; what is none is not."""
    text = (item.get("data") or {}).get(_FILE)
    try:
        content: Any = yaml.safe_load(text) if isinstance(text, str) and len(text) <= _LARGEST else None
    except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: such as a date of month 13
        return False
    if not isinstance(content, dict):
        return False
    watched = content.get("namespaces")
    return watched is None or (isinstance(watched, list) and (not watched or namespace in watched))


def _other_version(metadata: Json) -> Iterator[str]:
    installed = (metadata.get("labels") or {}).get(_VERSION_LABEL)
    if installed and installed != version():
        yield f"of version {installed}; this command decides as version {version()}, which may differ"
