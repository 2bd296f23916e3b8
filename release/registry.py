"""What a registry has, read with crane and Helm."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from release.references import Reference
from release.tools import Tools


@dataclass(frozen=True)
class Registry:
    """Reads of registries; `insecure`: without TLS, or with a certificate that nobody vouches for."""

    tools: Tools
    insecure: bool = False

    def digest(self, reference: Reference) -> str:
        """The digest that a tag names now."""
        return self.tools.run("crane", "digest", *self._words, str(reference)).strip()

    def validate(self, reference: Reference) -> None:
        """Raises a ClusterError unless manifest, configuration and layers are what their digests say."""
        self.tools.run("crane", "validate", *self._words, "--remote", reference.pinned)

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
