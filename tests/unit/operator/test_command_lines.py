"""vLLM's command line and the revision key of a table of specs and of every example, as they were recorded.

A key that changes restarts every service at the next upgrade of the operator. Record such a change on purpose only:
`python -m tests.unit.operator.test_command_lines` writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_api.service import LLMService
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.revision import revision_key
from llmservice_vllm.versions import default_version

from tests.unit.decide_world import an_llmservice
from tests.unit.operator.test_build_deployment import SETTINGS

FILE = Path(__file__).parents[1] / "fixtures" / "command_lines.json"
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
RECORDED: dict[str, Any] = json.loads(FILE.read_text())


def specs() -> dict[str, Any]:
    """By name: those of the table as they stand in the file, those of the examples with the vLLM of that time."""
    texts = {path.name: path.read_text().replace(default_version(), "0.32.0") for path in EXAMPLES}
    documents = {name: list(yaml.safe_load_all(text)) for name, text in texts.items()}
    found = {
        f"{name}: {document['metadata']['name']}": document["spec"]
        for name, some in documents.items()
        for document in some
        if document["kind"] == "LLMService"
    }
    return {name: one["spec"] for name, one in RECORDED.items() if "spec" in one} | found


def rendered(spec: Any) -> dict[str, Any]:
    llm = LLMService.from_object(an_llmservice(spec))
    arguments = pod_template(llm, SETTINGS)["spec"]["containers"][0]["args"]
    return {"args": " ".join(arguments[arguments.index("--") + 1 :]), "revision": revision_key(llm.spec)}


@pytest.mark.parametrize("name", specs())
def test_the_command_line_and_the_revision_key_are_those_recorded(name: str) -> None:
    recorded = RECORDED[name]
    assert rendered(specs()[name]) == {part: recorded[part] for part in ("args", "revision")}


def main() -> None:
    """Record what is rendered now."""
    kept = {name: {"spec": one["spec"]} for name, one in RECORDED.items() if "spec" in one}
    found = {name: kept.get(name, {}) | rendered(spec) for name, spec in specs().items()}
    lines = [f" {json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
