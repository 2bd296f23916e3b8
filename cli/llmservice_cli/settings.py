"""The operator's settings: of a file, of its ConfigMap in a cluster, or the chart's defaults.

Anybody may write a ConfigMap with the chart's label: what one says is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kubeloop.bounded_yaml import NoYaml, load
from kubeloop.errors import Forbidden
from kubeloop.resources import CONFIG_MAP
from llmservice_operator.manifests.settings import InvalidSettings, Settings
from llmservice_operator.options import version

from .api import Api, Json
from .errors import BadInput, read_text
from .installation import VERSION_LABEL, releases

OPTION = "--settings"
FILE = "settings.yaml"
LARGEST = 64 * 1024
"""Characters; the chart's file has some thousand."""
MOST_LEASES = MOST_OPERATORS = 16
_REMEDY = "Give the operator's settings file, or the chart's values: a mapping with `services`."
_GIVE = f"; give {OPTION} if the installation has its own"
_UNCONFIRMED = "(no ClusterRoleBinding that you may list says that an operator is installed there)"
_LONGEST_NAME, _LONGEST_REASON = 253, 300


def defaults() -> Settings:
    """As the chart installs this version where nobody sets `services` in its values."""
    return Settings(operator_image=f"llmservice-operator:{version()}", image_pull_policy="IfNotPresent")


def of_file(place: str) -> Settings:
    """Of the operator's settings file, or of values of its chart; BadInput names what is wrong in it."""
    try:
        return of_text(read_text(place, OPTION, _REMEDY))
    except InvalidSettings as invalid:
        raise BadInput.of(OPTION, f"{place}: {invalid}.", _REMEDY) from None


def of_config_map(config_map: Json) -> Settings:
    """What an operator's ConfigMap says of services; InvalidSettings says what is wrong in it."""
    text = _text(config_map)
    if text is None:
        raise InvalidSettings(f"it has no {FILE} of at most {LARGEST} characters")
    return of_text(text)


async def settings_of(kube: Api, namespace: str) -> tuple[Settings, str]:
    """Those of the operator that watches a namespace, and a note that says where they are from, or what is assumed.

    A ConfigMap counts only in a namespace to which a ClusterRoleBinding of the chart gives rights, where the user may
    read those and there are any.
    """
    try:
        found = await releases(kube)
        labelled = await kube.list_all(CONFIG_MAP, None, label_selector=found.selector)
    except Forbidden:
        return defaults(), f"settings: the chart's defaults, since you may not read the operator's{_GIVE}"
    there = [each for each in labelled if not found.namespaces or each["metadata"]["namespace"] in found.namespaces]
    watching = [each for each in there[:MOST_OPERATORS] if _watches(each, namespace)]
    if len(watching) != 1:
        why = f"{len(watching)} operators watch this namespace" if watching else "no operator's settings are found"
        return defaults(), f"settings: the chart's defaults, since {why}{_GIVE}"
    metadata = watching[0]["metadata"]
    place = f"ConfigMap {metadata['namespace']}/{metadata['name']}"
    try:
        read = of_config_map(watching[0])
    except InvalidSettings as invalid:
        why = "".join(letter if letter.isprintable() else "?" for letter in str(invalid)[:_LONGEST_REASON])
        return defaults(), f"settings: the chart's defaults, since {place} cannot be read: {why}{_GIVE}"
    unconfirmed = () if found.namespaces else (_UNCONFIRMED,)
    return read, " ".join([f"settings: {place}", *unconfirmed, *_other_version(metadata)])


def lease_names(config_maps: Sequence[Json], operators: Sequence[Json]) -> tuple[tuple[str, str], ...]:
    """Namespace and name of the Leases by which operators lead: by their settings, else by their Deployments' names."""
    said = [name for each in config_maps for name in _lease_name(each)]
    named = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in operators]
    return tuple(dict.fromkeys(said or named))[:MOST_LEASES]


def of_text(text: str) -> Settings:
    """Of the content of a settings file; InvalidSettings says what is wrong in it."""
    try:
        content = load(text)
    except NoYaml as error:
        raise InvalidSettings(f"it is no YAML: {error}") from None
    services = content.get("services") if isinstance(content, dict) else None
    if not isinstance(services, dict):
        raise InvalidSettings("it has no mapping `services`")
    image = {"operatorImage": defaults().operator_image, "imagePullPolicy": defaults().image_pull_policy}
    return Settings.from_mapping({**image, **services})


def _text(config_map: Json) -> str | None:
    """The file, None where there is none or it is too large."""
    text = (config_map.get("data") or {}).get(FILE)
    return text if isinstance(text, str) and len(text) <= LARGEST else None


def _content(config_map: Json) -> dict[str, Any] | None:
    """The whole file; None where it is no mapping."""
    try:
        content = load(_text(config_map) or "")
    except NoYaml:
        return None
    return content if isinstance(content, dict) else None


def _watches(config_map: Json, namespace: str) -> bool:
    """Whether it is the settings file of an operator of all namespaces, or of this one; what is none is not."""
    content = _content(config_map)
    if content is None:
        return False
    watched = content.get("namespaces")
    return watched is None or (isinstance(watched, list) and (not watched or namespace in watched))


def _lease_name(config_map: Json) -> Iterator[tuple[str, str]]:
    election = (_content(config_map) or {}).get("leaderElection")
    name = election.get("leaseName") if isinstance(election, dict) else None
    if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME:
        yield config_map["metadata"]["namespace"], name


def _other_version(metadata: Json) -> Iterator[str]:
    installed = (metadata.get("labels") or {}).get(VERSION_LABEL)
    if installed and installed != version():
        yield f"of version {installed}; this command decides as version {version()}, which may differ"
