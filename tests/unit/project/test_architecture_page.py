"""docs/architecture.md and CONTRIBUTING's map: packages, layers and files are the tree's, and each rule has a test."""

import ast
import re
from pathlib import Path

from tests.support.documents import DOCS, PACKAGE_FOLDERS, ROOT

PAGE = (DOCS / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAP = CONTRIBUTING.partition("## Where each kind of change goes\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| [^|-][^|]+ \|[^\n]*\|$", MAP, re.MULTILINE)[1:]
OPERATOR = ROOT / "operator/llmservice_operator"
LAYERS = ("service", "behaviours", "revisions", "observe", "workload", "facts", "manifests", "readers")
ROOTS = tuple(ROOT / folder for folder in PACKAGE_FOLDERS)


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def packages() -> set[Path]:
    """Folders with code, and those of tools. Of the command line, where each command is one, the whole."""
    found = {path.parent for top in ("operator", "runtime") for path in (ROOT / top).rglob("__init__.py")}
    return found | {path.parent for top in ("cli", "tools") for path in (ROOT / top).glob("*/*.py")}


def named(row: str) -> list[str]:
    """The paths of a row of the map."""
    return [path for path in re.findall(r"`([\w./*-]+)`", row) if "/" in path or path.endswith((".py", ".tsv"))]


def folders(row: str) -> set[Path]:
    """The folders that a row names: from the root, of a package, of the operator, or below the first that it names."""
    bases = [OPERATOR, ROOT, *ROOTS]
    found: list[Path] = []
    for path in named(row):
        places = [base / path for base in (*bases, *found[:1]) if (base / path).is_dir()]
        found += places[:1]
    return set(found)


def test_the_pictures_name_layers_and_files_that_exist() -> None:
    picture = PAGE.partition("```mermaid")[2].partition("```")[0]
    assert [layer for layer in LAYERS if not re.search(rf"\b{layer}\b", picture)] == []
    assert [layer for layer in LAYERS if not {*OPERATOR.glob(layer), *OPERATOR.glob(f"{layer}.py")}] == []
    files = re.findall(r"[\w/]+\.py(?=\"\])", section("Consistency"))
    assert len(files) >= 4
    assert [path for path in files if not (ROOT / "operator" / path).is_file()] == []


def test_each_rule_names_a_test_that_exists() -> None:
    rules = re.findall(r"^\| \d+ \|.*$", section("Consistency"), re.MULTILINE)
    assert len(rules) == 11
    for rule in rules:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", rule)
        assert named, rule
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests/unit" / file).read_text(), f"{file} has no {test}"


def test_the_map_names_files_that_exist() -> None:
    """A path is the operator's or the repository's; a bare name lies in, or a folder below, one that its row names."""
    missing = []
    for row in ROWS:
        bases = [
            OPERATOR,
            ROOT,
            *ROOTS,
            ROOT / "tests/unit",
            ROOT / "tests/e2e",
            ROOT / "tests/contract",
            *folders(row),
        ]
        missing += [
            path for path in named(row) if not any([*base.glob(path), *base.glob(f"*/{path}")] for base in bases)
        ]
    assert missing == []


def test_the_map_names_every_package_and_stays_short() -> None:
    mapped = {folder for row in ROWS for folder in folders(row)} | {OPERATOR}
    assert sorted(str(path.relative_to(ROOT)) for path in packages() - mapped) == []
    assert len(ROWS) <= 25
    assert len(CONTRIBUTING.encode()) <= 15_000


def test_only_workload_names_the_kind_that_runs_replicas() -> None:
    """Another kind is a module there: nothing else knows the name, the fields or the controller of one."""
    naming = []
    for path in OPERATOR.rglob("*.py"):
        if path.is_relative_to(OPERATOR / "workload") or path == OPERATOR / "manifests" / "router.py":  # no replicas
            continue
        tree = ast.parse(path.read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts]
        named = [name.id for name in ast.walk(tree) if isinstance(name, ast.Name)]
        if "DEPLOYMENT" in named or any(isinstance(text, str) and "Deployment" in text for text in said):
            naming.append(str(path.relative_to(OPERATOR)))
    assert naming == []
