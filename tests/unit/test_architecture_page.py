"""docs/architecture.md names the packages that there are, and the files of a pass."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
OPERATOR = ROOT / "operator/llmservice_operator"
LAYERS = ("control", "decide", "build", "observe", "kube", "planner", "api")


def packages() -> set[str]:
    """Folders with code, but for those of the command line, where each command is one."""
    found = {"localcluster", "cli/llmservice_cli"}
    for top in ("operator", "runtime", "fetch"):
        found |= {str(path.parent.relative_to(ROOT)) for path in (ROOT / top).rglob("__init__.py")}
    return found


def test_the_table_of_folders_is_the_tree() -> None:
    section = PAGE.partition("## Folders")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)` \| (.+) \|$", section, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(packages())
    assert len({text for _, text in rows}) == len(rows)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:control|decide)/[\w/]+\.py)", PAGE))))
def test_a_file_that_is_named_exists(path: str) -> None:
    assert (OPERATOR / path).is_file()


def test_the_picture_has_the_layers() -> None:
    picture = PAGE.partition("```mermaid")[2].partition("```")[0]
    for layer in LAYERS:
        assert re.search(rf"\b{layer}\b", picture), layer
        assert (OPERATOR / layer).is_dir()
