"""The settings files of operators, from their ConfigMaps. What they say is bounded: anybody may write one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from llmservice_operator.manifests.settings import InvalidSettings, Settings

from llmservice_cli.api import Json
from llmservice_cli.render import settings

from .facts import Objects

FILE = "settings.yaml"
LARGEST = 64 * 1024
"""Characters; the chart's file has some thousand."""
MOST_LEASES = 16
_LONGEST_NAME = 253


def text_of(config_map: Json) -> str | None:
    """The file, None where there is none or it is too large."""
    text = (config_map.get("data") or {}).get(FILE)
    return text if isinstance(text, str) and len(text) <= LARGEST else None


def services_of(config_map: Json) -> Settings:
    """What it says of services; InvalidSettings says what is wrong in it."""
    text = text_of(config_map)
    if text is None:
        raise InvalidSettings(f"it has no {FILE} of at most {LARGEST} characters")
    return settings.of_text(text)


def lease_names(config_maps: Objects, operators: Objects) -> tuple[tuple[str, str], ...]:
    """Namespace and name of the Leases by which operators lead: by their settings, else by their Deployments' names."""
    said = [name for each in config_maps for name in _said(each)]
    named = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in operators]
    return tuple(dict.fromkeys(said or named))[:MOST_LEASES]


def _said(config_map: Json) -> Iterator[tuple[str, str]]:
    text = text_of(config_map)
    try:
        content: Any = yaml.safe_load(text) if text is not None else None
    except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: such as a date of month 13
        return
    if not isinstance(content, dict) or not isinstance(election := content.get("leaderElection"), dict):
        return
    if isinstance(name := election.get("leaseName"), str) and 0 < len(name) <= _LONGEST_NAME:
        yield config_map["metadata"]["namespace"], name
