"""The chart of a release: the values name every image by digest."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from localcluster.errors import ClusterError
from release.plan import CHART_FOLDER, DEFAULT_IMAGES
from release.references import Reference, pinned_text
from release.tools import Tools


def resolved_values(
    values: str, operator: Reference, cpu: Reference | None, router: Reference | None, digests: Mapping[str, str]
) -> str:
    """The text of values.yaml with images by digest, comments kept.

    `digests` has the default vLLM images, as values.yaml writes them; `cpu` and `router` are the release's own.
    """
    changed = _replaced(values, "image", "repository", operator.name)
    changed = _replaced(changed, "image", "digest", operator.digest)
    services = yaml.safe_load(values)["services"]
    for key in DEFAULT_IMAGES:
        if services[key] in digests:
            changed = _replaced(changed, "services", key, pinned_text(services[key], digests[services[key]]))
    changed = _replaced(changed, "routing", "image", str(router)) if router else changed
    return _replaced(changed, "services", "defaultCpuImage", str(cpu)) if cpu else changed


def _replaced(text: str, section: str, key: str, value: str) -> str:
    """`section.key` set to `value`, which needs no quotes in YAML; nothing else is touched."""
    pattern = re.compile(rf"(^{section}:\n(?:(?:[ #].*)?\n)*?  {key}: )(\S+)$", re.M)
    changed, count = pattern.subn(lambda found: f'{found[1]}"{value}"', text, count=1)
    if count != 1 or yaml.safe_load(changed)[section][key] != value:
        raise ClusterError(f"values.yaml has no line {section}.{key}")
    return changed


def with_home(about: str, repository: str) -> str:
    """The text of Chart.yaml with the released repository as home and source, which the chart's notes print.

    Unchanged where the repository is no public address: a clone without a remote, or one by ssh.
    """
    if not repository.startswith("https://"):
        return about
    home = repository.removesuffix(".git")
    return f"{about.rstrip()}\nhome: {home}\nsources: [{home}]\n"


def package(root: Path, values: str, repository: str, tools: Tools, output: Path, epoch: int) -> Path:
    """The chart's archive in `output`, the same bytes for the same sources, repository and digests."""
    scratch = output / ".chart"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(root / CHART_FOLDER, scratch)
    (scratch / "values.yaml").write_text(values)
    (scratch / "Chart.yaml").write_text(with_home((scratch / "Chart.yaml").read_text(), repository))
    for path in (scratch, *scratch.rglob("*")):
        os.utime(path, (epoch, epoch))
    printed = tools.run("helm", "package", str(scratch), "--destination", str(output))
    shutil.rmtree(scratch)
    made = Path(printed.strip().rpartition(": ")[2])
    # Helm writes the archive's time into the manifest that it pushes.
    os.utime(made, (epoch, epoch))
    return made


def push(archive: Path, charts: str, tools: Tools, *, insecure: bool) -> str:
    """The digest of the chart's manifest."""
    plain = ("--plain-http",) if insecure else ()
    printed = tools.run("helm", "push", str(archive), f"oci://{charts}", *plain)
    found = re.search(r"^Digest: (\S+)$", printed, re.M)
    if found is None:
        raise ClusterError("helm push printed no digest", printed.strip())
    return found[1]
