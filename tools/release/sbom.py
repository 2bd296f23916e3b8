"""SBOMs as CycloneDX JSON, by syft. The same content gives the same document."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import tempfile
import uuid
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from release.references import Reference
from release.tools import Tools

JSON = dict[str, Any]
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "release.llmservice.dev")


def of_image(reference: Reference, version: str, tools: Tools, epoch: int, *, insecure: bool) -> str:
    """What an image in the registry holds: Debian packages, Python packages, programs."""
    more = {"SYFT_REGISTRY_INSECURE_USE_HTTP": "true"} if insecure else {}
    name = ("--source-name", reference.name, "--source-version", version)
    made = tools.run("syft", "scan", f"registry:{reference.pinned}", *name, "-o", "cyclonedx-json", more=more)
    return stable(json.loads(made), reference.digest, epoch)


def of_wheel(wheel: Path, requirements: str, version: str, digest: str, tools: Tools, epoch: int) -> str:
    """The wheel itself, and the packages of its extras as the lock file pins them."""
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        Path(scratch, "requirements.txt").write_text(requirements)
        return _of_folder(Path(scratch), wheel.name, version, digest, tools, epoch)


def of_chart(archive: Path, images: Iterable[Reference], version: str, tools: Tools, epoch: int) -> str:
    """The chart and the images that its values name."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(("tar", "-xf", str(archive), "-C", scratch), check=True, capture_output=True)
        document = json.loads(_of_folder(Path(scratch), archive.name, version, archive.name, tools, epoch))
    parts = document.setdefault("components", [])
    parts.extend(container(image) for image in images)
    return stable(document, document["serialNumber"], epoch)


def container(image: Reference) -> JSON:
    """An image as a component."""
    last = image.repository.rpartition("/")[2]
    purl = f"pkg:oci/{last}@{quote(image.digest, safe='')}?repository_url={quote(image.name, safe='')}"
    digest = {"hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}]} if image.digest else {}
    return {
        "type": "container", "bom-ref": purl, "name": image.name, "version": image.tag or image.digest, "purl": purl,
        **digest,
    }  # fmt: skip


def _of_folder(folder: Path, name: str, version: str, seed: str, tools: Tools, epoch: int) -> str:
    words = ("--source-name", name, "--source-version", version, "--base-path", str(folder))
    made = tools.run("syft", "scan", f"dir:{folder}", *words, "-o", "cyclonedx-json")
    return stable(json.loads(made), seed, epoch)


def stable(document: JSON, seed: str, epoch: int) -> str:
    """The document with names that depend on its subject and not on where it was scanned, and the release's time."""
    subject = document["metadata"].get("component", {}).get("bom-ref", "")
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, seed)}"
    document["metadata"]["timestamp"] = dt.datetime.fromtimestamp(epoch, dt.UTC).isoformat()
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    return text.replace(json.dumps(subject), json.dumps(document["serialNumber"])) if subject else text
