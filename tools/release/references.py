"""Names of images: parsing, the copy in a mirror, and names with a digest. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from localcluster.errors import ClusterError

HUB = "docker.io"
_FORM = re.compile(
    r"(?P<name>[A-Za-z0-9][^@:\s]*(?::\d+(?=/)[^@:\s]*)?)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>\S+))?"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """An image's registry, repository, tag and digest; either of the last two may be empty."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """A reference as people write it: without a registry it is of Docker Hub, without a tag it is `latest`."""
        found = _FORM.fullmatch(text)
        if found is None or (found["digest"] and not _DIGEST.fullmatch(found["digest"])):
            raise ClusterError(
                f"{text!r} is not an image reference", "Write registry/name:tag or registry/name@sha256:…"
            )
        first, slash, rest = found["name"].partition("/")
        has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
        registry, repository = (first, rest) if has_registry else (HUB, found["name"])
        if registry == HUB and "/" not in repository:
            repository = f"library/{repository}"
        tag = found["tag"] or ("" if found["digest"] else "latest")
        return cls(registry, repository, tag, found["digest"] or "")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def pinned(self) -> str:
        """By digest alone."""
        return f"{self.name}@{self.digest}"

    def with_digest(self, digest: str) -> Reference:
        """The same image, named by its content as well."""
        if not _DIGEST.fullmatch(digest):
            raise ClusterError(f"{digest!r} is not a digest of {self}")
        return replace(self, digest=digest)

    def in_mirror(self, mirror: str) -> Reference:
        """The same path below `mirror` (host/path); without a mirror, the reference itself."""
        return (
            replace(Reference.parse(f"{mirror}/{self.repository}"), tag=self.tag, digest=self.digest)
            if mirror
            else self
        )


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 digest of an image."""
    return _DIGEST.fullmatch(text) is not None


def pinned_text(text: str, digest: str) -> str:
    """`text` as it was written, with the digest behind its tag: operators read the engine's version in the tag."""
    Reference.parse(text).with_digest(digest)
    return f"{text.partition('@')[0]}@{digest}"
