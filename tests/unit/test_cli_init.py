"""`llmservice init`: a manifest that the operator accepts, and the Role of the activator where one is needed."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from llmservice_cli.init.arguments import ACTIVATOR
from llmservice_operator.api.service import LLMService

from .cli_world import Command

MODEL = ("--model", "hf://org/model")
ZERO = ("--min-replicas", "0")
KEYS = ("--api-key-secret", "keys/api-key")

MADE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "the smallest": ((), {}),
    "to zero": (ZERO, {"scaling": {"autoscaling": {"minReplicas": 0, "maxReplicas": 1}}}),
    "from two": (("--min-replicas", "2"), {"scaling": {"autoscaling": {"minReplicas": 2, "maxReplicas": 2}}}),
    "to four": (("--max-replicas", "4"), {"scaling": {"autoscaling": {"maxReplicas": 4}}}),
    "both": ((*ZERO, "--max-replicas", "4"), {"scaling": {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}}),
    "keys": (KEYS, {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}),
}


@pytest.mark.parametrize(("words", "spec"), MADE.values(), ids=MADE.keys())
def test_the_manifest_has_what_was_asked_for(words: tuple[str, ...], spec: dict[str, Any], llmservice: Command) -> None:
    ran = llmservice("init", "chat", *MODEL, *words)
    assert (ran.code, ran.err) == (0, "")
    (made,) = yaml.safe_load_all(ran.out)
    assert made["metadata"] == {"name": "chat"}
    assert made["spec"] == {"model": {"uri": "hf://org/model"}} | spec
    metadata = made["metadata"] | {"namespace": "team", "uid": "u", "generation": 1}
    assert LLMService.from_object(made | {"metadata": metadata}).spec.model.uri == "hf://org/model"


@pytest.mark.parametrize("account", [ACTIVATOR, "scaling/mine"])
def test_keys_of_a_service_that_may_be_at_zero_are_granted_to_the_activator(account: str, llmservice: Command) -> None:
    given = () if account == ACTIVATOR else ("--activator", account)
    ran = llmservice("init", "chat", *MODEL, *ZERO, *KEYS, "-n", "team", *given)
    made, role, binding = yaml.safe_load_all(ran.out)
    assert {each["metadata"]["namespace"] for each in (made, role, binding)} == {"team"}
    assert role["kind"] == "Role"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"], "verbs": ["get"]}]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    namespace, name = account.split("/")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]


def test_keys_of_a_service_that_keeps_a_replica_are_granted_to_nobody(llmservice: Command) -> None:
    for words in ((), ("--min-replicas", "1")):
        assert len(list(yaml.safe_load_all(llmservice("init", "chat", *MODEL, *KEYS, "-n", "team", *words).out))) == 1


REFUSED = {
    "no model": (("chat",), "--model"),
    "a name with capitals": (("Chat", *MODEL), "name"),
    "an unknown place": (("chat", "--model", "ftp://x"), "uri"),
    "bounds that cross": (("chat", *MODEL, "--min-replicas", "3", "--max-replicas", "2"), "maxReplicas"),
    "fewer than none": (("chat", *MODEL, "--min-replicas", "-1"), "minReplicas"),
    "a Secret without a key": (("chat", *MODEL, "--api-key-secret", "keys"), "two names with a slash between"),
    "a Role without a namespace": (("chat", *MODEL, *ZERO, *KEYS), "give it with -n"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_operator_would_refuse_is_not_printed(
    words: tuple[str, ...], message: str, llmservice: Command
) -> None:
    ran = llmservice("init", *words)
    assert (ran.code, ran.out, message in ran.err) == (2, "", True), ran
