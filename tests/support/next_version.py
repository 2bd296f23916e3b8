"""The operator's next version: this working tree with another pod template and one vLLM less, as an image."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmservice_vllm.versions import known_versions

from localcluster.buildkit import Recipe, running_builder
from localcluster.images import OPERATOR, Store, inputs_hash
from localcluster.paths import ClusterPaths, cache_root
from localcluster.progress import Progress
from localcluster.rootfs import base_key, base_layout
from tests.support.cluster import Cluster
from tests.support.operator import OPERATOR as RELEASE
from tests.support.operator import OPERATOR_NAMESPACE
from tests.support.patience import KUBECTL_TIMEOUT

REFERENCE = "registry.local/llmservice-operator:next"
HOSTNAME = "next"
"""What pods that this version renders are called inside."""
FORGOTTEN = known_versions()[-1]
"""The oldest vLLM that the present version knows; this one does not."""
_KNOWN = "return _files()"
_LINE = '"enableServiceLinks": False,'
_EDITS: Mapping[Path, tuple[str, str]] = {
    Path("operator/llmservice_operator/manifests/pod_template.py"): (_LINE, f'{_LINE} "hostname": "{HOSTNAME}",'),
    Path("runtime/llmservice_vllm/versions.py"): (_KNOWN, f"{_KNOWN}[:-1]"),
}


def build(paths: ClusterPaths, progress: Progress) -> str:
    """Into the cluster's store, unless it is there; its reference. The present one's dependencies are its own too."""
    store, inputs = Store(paths), inputs_hash(paths.root, OPERATOR, (base_key(OPERATOR.packages), repr(_EDITS)))
    if store.built_from(REFERENCE) == inputs:
        return REFERENCE
    with tempfile.TemporaryDirectory(prefix="llmservice-next-") as folder:
        context = Path(folder)
        for name in (OPERATOR.dockerfile, *OPERATOR.inputs):
            _copy(paths.root / name, context / name)
        for path, (line, changed) in _EDITS.items():
            text = (context / path).read_text()
            assert text.count(line) == 1, f"{path} is written otherwise now"
            (context / path).write_text(text.replace(line, changed))
        base = base_layout(cache_root(os.environ, Path.home()), OPERATOR.packages, progress)
        recipe = Recipe(REFERENCE, context / OPERATOR.dockerfile, context, base=base)
        store.forget(REFERENCE)
        with running_builder(paths, os.environ) as builder, progress.step(f"image {REFERENCE}") as step:
            builder.build(recipe, paths.logs / "image-operator-next.log", step)
        store.record(REFERENCE, inputs)
    return REFERENCE


@contextmanager
def leading(cluster: Cluster, *values: str) -> Iterator[None]:
    """Upgrade the operator's release to the next version, with further words for helm; as it was afterwards."""
    image = build(cluster.paths, Progress())
    release = (RELEASE, "-n", OPERATOR_NAMESPACE)
    before = json.loads(cluster.helm("status", *release, "-o", "json"))["version"]
    chart = str(cluster.paths.root / "charts" / "llmservice-operator")
    tag = ("--set-string", f"image.tag={image.rpartition(':')[2]}")
    try:
        cluster.helm("upgrade", *release, chart, "--reuse-values", *tag, *values, "--wait", KUBECTL_TIMEOUT)
        yield
    finally:
        cluster.helm("rollback", *release, str(before), "--wait", KUBECTL_TIMEOUT)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)
