"""What a registry has, read with crane and Helm."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from release.references import Reference
from release.tools import Tools


@dataclass(frozen=True)
class Registry:
    """Reads of registries; `insecure`: without TLS, or with an untrusted certificate."""

    tools: Tools
    insecure: bool = False

    def digest(self, reference: Reference) -> str:
        """The digest that a tag names now."""
        return self.tools.run("crane", "digest", *self._words, str(reference)).strip()

    def validate(self, reference: Reference) -> None:
        """Raises a ClusterError unless manifest, configuration and layers are what their digests say."""
        manifest = self.tools.output("crane", "manifest", *self._words, reference.pinned)
        _require(reference, "manifest", reference.digest, hashlib.sha256(manifest).hexdigest())
        described = json.loads(manifest)
        for blob in (described["config"], *described["layers"]):
            place = f"{reference.name}@{blob['digest']}"
            # Whole, since what a registry says of its blobs is what is in question.
            found = self.tools.digest("crane", "blob", *self._words, place)
            _require(reference, f"blob {blob['digest']}", blob["digest"], found)

    def chart(self, reference: Reference) -> bytes:
        """The archive of the chart with this digest."""
        plain = ("--plain-http",) if self.insecure else ()
        with tempfile.TemporaryDirectory() as folder:
            self.tools.run("helm", "pull", f"oci://{reference.pinned}", *plain, "--destination", folder)
            archives = list(Path(folder).glob("*.tgz"))
            if len(archives) != 1:
                raise ClusterError(f"{reference} is not a chart")
            return archives[0].read_bytes()

    @property
    def _words(self) -> tuple[str, ...]:
        return ("--insecure",) if self.insecure else ()


def _require(reference: Reference, what: str, stated: str, found: str) -> None:
    if stated != f"sha256:{found}":
        raise ClusterError(f"the {what} of {reference.name} has the hash sha256:{found}")
