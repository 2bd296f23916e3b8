"""Figures of the code's structure: files and lines, arrows between packages, and what one edit passes through.

python -m scripts.structure              packages, arrows, and how many modules an edit of maxNumSeqs enters
python -m scripts.structure --modules    each of those modules, with the functions that ran

An edit is one of `spec.batching.maxNumSeqs` of a service that serves: a whole operator, on the API server of the unit
tests, until it has written Deployment and status. A module counts once any function of it has run for that.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    "operator/kubeloop",
    "operator/llmservice_api",
    "operator/llmservice_planner",
    "operator/llmservice_operator",
    "operator/llmservice_activator",
    "runtime/llmservice_runtime",
    "runtime/llmservice_vllm",
    "runtime/llmservice_fetch",
    "runtime/llmservice_router",
    "cli/llmservice_cli",
    "cli/llmservice_ui",
)


def files(package: str) -> list[Path]:
    """Those with code."""
    return sorted((ROOT / package).rglob("*.py"))


def arrows() -> Mapping[tuple[str, str], int]:
    """Imports between packages: from, to, in how many files."""
    names = {Path(package).name for package in PRODUCT}
    found: Counter[tuple[str, str]] = Counter()
    for package in PRODUCT:
        own = Path(package).name
        for file in files(package):
            tops = set()
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    tops.add(node.module.partition(".")[0])
                elif isinstance(node, ast.Import):
                    tops |= {alias.name.partition(".")[0] for alias in node.names}
            found.update((own, top) for top in tops & names - {own})
    return found


class Entered:
    """Functions of the product that run while it is on, by module."""

    def __init__(self) -> None:
        self.by_module: dict[str, set[str]] = defaultdict(set)
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        file = Path(code.co_filename)
        if code.co_name != "<module>" and file.is_relative_to(ROOT / "operator"):
            module = ".".join(file.relative_to(ROOT / "operator").with_suffix("").parts)
            self.by_module[module.removesuffix(".__init__")].add(code.co_qualname)

    def start(self) -> None:
        """Of all threads."""
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        """No more."""
        sys.setprofile(None)
        threading.setprofile(None)


async def edit() -> Entered:
    """What runs from the edit of one number until all of it is written."""
    sys.path.insert(0, str(ROOT))
    from llmservice_operator.manifests.settings import Settings
    from llmservice_vllm.versions import default_version

    from tests.unit.api_server import ApiServer, llmservice
    from tests.unit.running_operator import running

    spec: dict[str, Any] = {"model": {"uri": "hf://a/b"}, "fitPolicy": "Ignore", "scaling": {"replicas": 1}}
    api = ApiServer(llmservice("chat", 1, spec=spec, namespace="team"))
    settings = Settings(
        operator_image="llmservice-operator:1", default_gpu_image=f"vllm/vllm-openai:v{default_version()}"
    )
    entered = Entered()
    async with running(api, services=settings) as operator:
        await operator.acts_on("team", "chat")

        def is_written(number: int) -> bool:
            deployment = api.find("Deployment", "chat", "team")
            parent = api.find("LLMService", "chat", "team") or {}
            status = parent.get("status") or {}
            template = str(deployment)
            return f"'--max-num-seqs', '{number}'" in template and status.get("observedGeneration") == number

        live = api.find("LLMService", "chat", "team")
        assert live is not None
        entered.start()
        try:
            api.put({**live, "spec": {**spec, "batching": {"maxNumSeqs": 7}}}, generation=7)
            await operator.eventually(lambda: is_written(7))
        finally:
            entered.stop()
    return entered


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", action="store_true", help="what the edit enters, one line a module")
    options = parser.parse_args()
    rows = [
        (package, len(files(package)), sum(len(f.read_text().splitlines()) for f in files(package)))
        for package in PRODUCT
    ]
    for package, count, lines in (*rows, ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))):
        print(f"{package:32} {count:4} files {lines:6} lines")
    print()
    for (source, target), count in sorted(arrows().items()):
        print(f"{source} -> {target}: {count} files")
    entered = asyncio.run(edit()).by_module
    print(f"\nan edit of maxNumSeqs enters {len(entered)} of {sum(row[1] for row in rows[:4])} modules of the operator")
    for module, functions in sorted(entered.items()) if options.modules else ():
        print(f"  {module}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    main()
