"""The settings file of whoever installs the operator."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.manifests.settings import CABundle, InvalidSettings, Settings


def test_camel_case_keys_and_defaults() -> None:
    settings = Settings.from_mapping(
        {
            "operatorImage": "op:2",
            "defaultCpuImage": "cpu:1",
            "runAsUser": 1000,
            "httpProxy": "",
            "hfEndpoint": None,
            "caBundle": {"configMap": "ca", "key": "bundle.pem"},
            "imagePullSecrets": ["a"],
            "hasGroups": True,
        }
    )
    assert (settings.operator_image, settings.default_cpu_image, settings.run_as_user) == ("op:2", "cpu:1", 1000)
    assert settings.default_gpu_image == Settings().default_gpu_image
    assert (settings.http_proxy, settings.hf_endpoint) == (None, None)
    assert settings.ca_bundle == CABundle("ca", "bundle.pem")
    assert settings.image_pull_secrets == ("a",)
    # A null user is left to the platform; an absent one is the default.
    assert (Settings.from_mapping({"runAsUser": None}).run_as_user, Settings().run_as_user) == (None, 2000)


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        pytest.param({"operatorimage": "x"}, "operatorimage", id="unknown key"),
        pytest.param({"runAsUser": "2000"}, "runAsUser", id="wrong type"),
        pytest.param({"caBundle": {"secret": "x"}}, "caBundle", id="wrong source"),
        pytest.param({"caBundle": {"configMap": ["x"]}}, "caBundle", id="no name"),
        pytest.param({"caBundle": "x"}, "caBundle", id="no mapping"),
        pytest.param({"imagePullSecrets": 5}, "imagePullSecrets", id="no list"),
        pytest.param({"imagePullSecrets": "abc"}, "imagePullSecrets", id="a text for a list"),
        pytest.param({"imagePullSecrets": [{"name": "a"}]}, "imagePullSecrets", id="no names"),
        pytest.param({"operatorImage": ["x"]}, "operatorImage", id="a list for a text"),
        pytest.param({"helperCpu": "many"}, "helperCpu", id="no quantity"),
        pytest.param({"helperMemory": 128}, "helperMemory", id="a number for a quantity"),
        pytest.param({"helperMemory": "0"}, "helperMemory", id="nothing"),
        pytest.param({5: "x", "other": 1}, "key", id="a key that is no name"),
        ({"hasGroups": "yes"}, "hasGroups: 'yes' is neither true nor false"),
    ],
)
def test_a_mistake_is_named(mapping: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSettings, match=named):
        Settings.from_mapping(mapping)


def test_groups_are_off_unless_they_are_on() -> None:
    assert [Settings.from_mapping(given).has_groups for given in ({}, {"hasGroups": True})] == [False, True]
