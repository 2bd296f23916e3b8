"""The operator's next version: this working tree with one line of the pod template changed, as an image of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from localcluster.buildkit import Recipe, running_builder
from localcluster.images import OPERATOR
from localcluster.paths import ClusterPaths, cache_root
from localcluster.progress import Progress
from localcluster.rootfs import base_layout

REFERENCE = "registry.local/llmservice-operator:next"
HOSTNAME = "next"
"""What pods that this version renders are called inside."""
_LINE = '"enableServiceLinks": False,'
_TEMPLATE = Path("operator/llmservice_operator/build/template.py")


def build(paths: ClusterPaths, progress: Progress) -> str:
    """Into the cluster's store; its reference. The layers of its dependencies are those of the present one."""
    with tempfile.TemporaryDirectory(prefix="llmservice-next-") as folder:
        context = Path(folder)
        for name in (OPERATOR.dockerfile, *OPERATOR.inputs):
            _copy(paths.root / name, context / name)
        template = context / _TEMPLATE
        text = template.read_text()
        assert text.count(_LINE) == 1, "the template is written otherwise now"
        template.write_text(text.replace(_LINE, f'{_LINE} "hostname": "{HOSTNAME}",'))
        base = base_layout(cache_root(os.environ, Path.home()), OPERATOR.packages, progress)
        recipe = Recipe(REFERENCE, context / OPERATOR.dockerfile, context, base=base)
        with running_builder(paths, os.environ) as builder, progress.step(f"image {REFERENCE}") as step:
            builder.build(recipe, paths.logs / "image-operator-next.log", step)
    return REFERENCE


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)
