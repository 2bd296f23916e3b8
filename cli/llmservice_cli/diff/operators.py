"""The settings of the operator in a cluster, from its ConfigMap where the user may read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from llmservice_operator.api.constants import OPERATOR
from llmservice_operator.build.settings import InvalidSettings, Settings
from llmservice_operator.kube.errors import Forbidden
from llmservice_operator.kube.resources import CONFIG_MAP
from llmservice_operator.options import version

from llmservice_cli.api import Api, Json
from llmservice_cli.render import settings

_SELECTOR = f"app.kubernetes.io/name={OPERATOR}"
_VERSION_LABEL = "app.kubernetes.io/version"
_FILE = "settings.yaml"
_GIVE = f"; give {settings.OPTION} if the installation has its own"


async def settings_of(kube: Api, namespace: str) -> tuple[Settings, str]:
    """Those of the operator that watches a namespace, and a note that says where they are from, or what is assumed."""
    try:
        labelled = await kube.list_all(CONFIG_MAP, None, label_selector=_SELECTOR)
    except Forbidden:
        return settings.defaults(), f"settings: the chart's defaults, since you may not read the operator's{_GIVE}"
    found = [item for item in labelled if _watches(item, namespace)]
    if len(found) != 1:
        why = "no operator's settings are found" if not found else f"{len(found)} operators watch this namespace"
        return settings.defaults(), f"settings: the chart's defaults, since {why}{_GIVE}"
    metadata = found[0]["metadata"]
    place = f"ConfigMap {metadata['namespace']}/{metadata['name']}"
    try:
        read = settings.of_text(found[0]["data"][_FILE])
    except InvalidSettings as invalid:
        return settings.defaults(), f"settings: the chart's defaults, since {place} cannot be read: {invalid}{_GIVE}"
    return read, " ".join([f"settings: {place}", *_other_version(metadata)])


def _watches(item: Json, namespace: str) -> bool:
    """Whether it is the settings file of an operator of all namespaces, or of this one."""
    text = (item.get("data") or {}).get(_FILE)
    try:
        content: Any = yaml.safe_load(text) if isinstance(text, str) else None
    except (yaml.YAMLError, RecursionError):
        return False
    watched = content.get("namespaces") if isinstance(content, dict) else None
    return isinstance(content, dict) and (not watched or namespace in watched)


def _other_version(metadata: Json) -> Iterator[str]:
    installed = (metadata.get("labels") or {}).get(_VERSION_LABEL)
    if installed and installed != version():
        yield f"of version {installed}; this command decides as version {version()}, which may differ"
