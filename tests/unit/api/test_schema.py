"""The schema keeps what the API promises: maxima, documentation, examples, merge keys, no defaults but two."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.crd import at, attach, crd, schema
from llmservice_api.kubernetes import SHAPED_FIELDS
from llmservice_api.rules import RULES
from llmservice_api.runtime import (
    OWN_CONTAINERS,
    OWN_PATHS,
    OWN_VOLUME_PREFIX,
    OWN_VOLUMES,
)
from llmservice_api.service import LLMService
from llmservice_cli.admission.check import evaluate
from llmservice_cli.admission.structural import findings
from llmservice_operator.manifests.containers import fetch_volumes, volumes
from llmservice_operator.manifests.settings import CABundle, Settings
from llmservice_runtime import contract

ROOT = schema()


def walk(part: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, part
    for name, child in part.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in part:
        yield from walk(part["items"], f"{path}[]")
    if isinstance(part.get("additionalProperties"), dict):
        yield from walk(part["additionalProperties"], f"{path}{{}}")


PARTS = dict(walk(ROOT["properties"]["spec"], "spec")) | dict(walk(ROOT["properties"]["status"], "status"))
OURS = {path: part for path, part in PARTS.items() if not re.search(rf"\.({'|'.join(SHAPED_FIELDS)})[.\[{{]", path)}


def test_every_string_list_and_map_has_a_maximum() -> None:
    def is_bounded(part: dict[str, Any]) -> bool:
        if part.get("type") == "array":
            return "maxItems" in part
        if "additionalProperties" in part:
            return "maxProperties" in part
        if part.get("type") == "string" or part.get("x-kubernetes-int-or-string"):
            return "maxLength" in part or "enum" in part
        return True

    assert len(PARTS) > 400
    assert {"spec.batching.maxModelLen", "spec.runtime.extraArgs[]", "status.conditions[].type"} <= set(PARTS)
    assert [path for path, part in PARTS.items() if not is_bounded(part)] == []


def test_every_number_of_the_spec_has_both_bounds() -> None:
    numbers = {p: s for p, s in OURS.items() if p.startswith("spec") and s.get("type") in ("integer", "number")}
    assert len(numbers) >= 15
    assert [p for p, s in numbers.items() if "enum" not in s and not {"minimum", "maximum"} <= set(s)] == []


def test_a_bound_with_a_fraction_is_a_rule_too() -> None:
    """The API server compares whole numbers with the bound's whole part: 0 is not below 0.05."""
    bounds = {
        (path, bound): f"self {sign} {part[bound]}"
        for path, part in PARTS.items()
        for bound, sign in (("minimum", ">="), ("maximum", "<="))
        if part.get("type") == "number" and not float(part.get(bound, 0)).is_integer()
    }
    assert len(bounds) >= 3
    ruled = {path: [rule["rule"] for rule in part.get("x-kubernetes-validations", ())] for path, part in PARTS.items()}
    assert [place for place, rule in bounds.items() if rule not in ruled[place[0]]] == []
    # The contract tests try each of them by its path.
    assert [path for path, part in OURS.items() if part.get("type") == "number" and re.search(r"[\[{]", path)] == []


def test_every_description_says_enough_and_not_more() -> None:
    """30 characters without default and example to 300 with them; what is longer belongs to a page in docs/."""
    kubernetes = re.compile(r"spec\.podTemplate\.spec\.")
    described = {path: part["description"] for path, part in OURS.items() if "description" in part}
    words = {path: re.split(r" (?:Default|Example): ", text)[0] for path, text in described.items()}
    assert {path for path in OURS if not path.endswith(("[]", "{}"))} <= set(described)
    assert [path for path, text in words.items() if len(text) < 30 and not kubernetes.match(path)] == []
    assert [path for path, text in described.items() if len(text) > 300] == []


def test_every_page_that_a_description_names_is_there() -> None:
    pages = {page for part in OURS.values() for page in re.findall(r"docs/[\w/-]+", part.get("description", ""))}
    assert len(pages) > 6
    assert [page for page in pages if not (Path(__file__).parents[3] / f"{page}.md").is_file()] == []


def test_an_example_is_valid_for_its_field() -> None:
    assert [PARTS[f"spec.endpoint.apiKeySecretRef.{name}"]["example"] for name in ("name", "key")] == [
        "llm-keys",
        "api-key",
    ], "of the reference itself"
    for path, part in PARTS.items():
        if "example" not in part:
            continue
        rules = [rule["rule"] for rule in part.get("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]]
        assert list(findings(part["example"], part, path)) == []
        assert [rule for rule in rules if not evaluate(rule, part["example"])] == [], path


def test_a_value_in_force_names_a_field_of_the_spec() -> None:
    assert PARTS["status.effective.drain.timeoutSeconds"]["description"].endswith("force of spec.drain.timeoutSeconds.")
    named = re.compile(r"in force of (spec\.[\w.]+\w)")
    fields = {match[1] for part in OURS.values() if (match := named.search(part.get("description", "")))}
    assert len(fields) > 60
    assert fields - set(PARTS) == set()


def test_every_field_of_the_spec_has_an_example() -> None:
    ours = [path for path in OURS if path.startswith("spec.") and not path.endswith(("[]", "{}"))]
    leaves = [path for path in ours if "properties" not in OURS[path] or path.rsplit(".", 1)[-1] in SHAPED_FIELDS]
    assert len(leaves) > 60
    assert [path for path in leaves if "example" not in OURS[path]] == []


def test_every_list_says_how_it_merges() -> None:
    lists = {path: part for path, part in PARTS.items() if part.get("type") == "array"}
    assert [path for path, part in lists.items() if "x-kubernetes-list-type" not in part] == []
    keys = {path: part.get("x-kubernetes-list-map-keys") for path, part in lists.items()}
    pod = "spec.podTemplate.spec"
    assert keys["spec.runtime.env"] == ["name"]
    assert keys["spec.runtime.imagePullSecrets"] == ["name"]
    assert keys[f"{pod}.volumes"] == ["name"]
    assert keys[f"{pod}.volumeMounts"] == ["mountPath"]
    assert keys[f"{pod}.initContainers"] == ["name"]
    assert keys["status.conditions"] == ["type"]
    assert lists["spec.model.servedModelNames"]["x-kubernetes-list-type"] == "set"


def test_defaults_are_the_two_that_the_api_server_needs() -> None:
    defaults = {path: part["default"] for path, part in PARTS.items() if "default" in part}
    # The protocol of a port is a key of its list, which must have one.
    ours = {path: value for path, value in defaults.items() if not path.endswith(".protocol")}
    assert ours == {"spec.scaling": {}, "spec.scaling.replicas": 1, "status": {"observedGeneration": -1}}


def test_it_has_no_unknown_fields_and_fits_into_the_annotation_of_kubectl_apply() -> None:
    # kubectl refuses annotations of more than 262,144 bytes; 2% are left for those of other tools.
    text = json.dumps(crd(), separators=(",", ":"))
    assert len(text) < 256 * 1024 * 0.98
    assert "x-kubernetes-preserve-unknown-fields" not in text


def test_a_rule_names_a_field_that_is_there() -> None:
    for path, rule in ((path, rule) for path, rules in RULES.items() for rule in rules):
        place = at(ROOT, path)
        assert rule.to_object() in place["x-kubernetes-validations"]
        assert len(rule.message) > 20
        assert "\n" not in rule.message
        assert re.search(r"\b(must|only|set|remove|choose|give|put|write|add|use|begin|lower|shorten)\b", rule.message)
        if rule.field:
            assert at(place, rule.field.removeprefix("."))
    with pytest.raises(KeyError):
        attach(schema(), {"spec.nowhere": RULES["spec.batching"]})


@pytest.mark.parametrize(
    "uri", ["hf://a/b", "s3://abc", "gs://abc", "az://abc", "pvc://a/b", "image://a:b", "file:///a"]
)
def test_the_pods_own_names_and_paths_are_refused_to_users(uri: str) -> None:
    raw = {
        "model": {"uri": uri, "chatTemplate": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        "parallelism": {"tensorParallelSize": 2},
        "speculativeDecoding": {"method": "eagle", "model": {"uri": "pvc://c/d"}, "numSpeculativeTokens": 1},
        "adapters": [{"name": "c", "uri": "image://c"}, {"name": "d", "uri": "pvc://e"}],
    }
    service = LLMService.from_object({"metadata": {"name": "a", "namespace": "b"}, "spec": raw})
    settings = Settings(operator_image="a", ca_bundle=CABundle(config_map="a", key="b"))
    mounted = volumes(service, settings) + fetch_volumes(service, settings)
    names = {volume.name for volume in mounted}
    assert {name for name in names if not name.startswith(OWN_VOLUME_PREFIX)} <= set(OWN_VOLUMES)
    assert len([name for name in names if name.startswith(OWN_VOLUME_PREFIX)]) == 2
    assert [v.path for v in mounted if v.path not in OWN_PATHS and not v.path.startswith("/llmservice/")] == []
    assert set(OWN_CONTAINERS) == {contract.SERVER_CONTAINER, contract.RUNTIME_CONTAINER, contract.FETCH_CONTAINER}
