"""Where `llmservice diff` has the operator's settings from: ConfigMaps that anybody may have written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.errors import ExitCode

from .cli_diff_world import Api, manifest, operator_binding, operator_settings, served, told


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    async with served(tmp_path, monkeypatch) as made:
        yield made


@pytest.mark.parametrize(
    ("objects", "denied", "note"),
    [
        ([], set(), "no operator's settings are found"),
        ([operator_settings(namespaces=["other"])], set(), "no operator's settings are found"),
        ([operator_settings(), operator_settings()], set(), "2 operators watch this namespace"),
        ([operator_settings(services={"nonsense": 1})], set(), "cannot be read: unknown settings: nonsense"),
        ([operator_settings(namespaces=["team-a"])], set(), "settings: ConfigMap system/operator"),
        ([operator_settings()], {"ConfigMap"}, "you may not read the operator's"),
        ([operator_settings(namespaces=5)], set(), "no operator's settings are found"),
        ([operator_settings(namespaces="team-a")], set(), "no operator's settings are found"),
        ([operator_settings(services={"imagePullSecrets": 5})], set(), "imagePullSecrets: give a list"),
        ([operator_settings(services={5: "x", "a\033": "x"})], set(), "a key is of type int"),
        ([operator_settings(services={"a\033": "x"})], set(), "unknown settings: a?"),
        ([operator_settings(comment="x" * 100_000)], set(), "no operator's settings are found"),
        ([operator_settings("team-b"), operator_settings(), operator_binding()], set(), "ConfigMap system/operator"),
        ([operator_settings("team-b"), operator_binding()], set(), "no operator's settings are found"),
        ([operator_settings(), operator_binding()], {"ClusterRoleBinding"}, "operator (no ClusterRoleBinding"),
    ],
)
async def test_where_the_settings_are_from_is_said(
    api: Api, objects: list[dict[str, Any]], denied: set[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.objects, api.denied = objects, denied
    code, service = await told(capsys, manifest())
    assert note in service["notes"][0]
    assert code == ExitCode.DONE  # the recorded template stands, whatever the settings
