"""Signatures and attestations by cosign: with a key, or with the identity of a CI job (keyless)."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from release.references import Reference
from release.tools import Tools

SBOM_TYPE = "cyclonedx"
PROVENANCE_TYPE = "slsaprovenance1"
KEYLESS = "keyless"
# No transparency log and no timestamps by others: signing needs no network but the registry's.
_OFFLINE = {"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", "rekorTlogConfig": {}, "tsaConfig": {}}


@dataclass(frozen=True)
class Signer:
    """`key` is a file, a KMS address of cosign's, or `keyless`. The key's password comes from COSIGN_PASSWORD."""

    key: str
    tools: Tools
    insecure: bool = False
    logged: bool = False

    def __post_init__(self) -> None:
        if "://" not in self.key and self.key != KEYLESS and not Path(self.key).is_file():
            raise ClusterError(f"there is no key {self.key}", "Make one: cosign generate-key-pair")

    def image(self, reference: Reference) -> None:
        """Sign what is in the registry, by digest."""
        with self._words() as words:
            self.tools.run("cosign", "sign", *words, *registry_words(self.insecure), reference.pinned)

    def attest(self, reference: Reference, kind: str, predicate: Path) -> None:
        """A signed statement in the registry: `predicate` is about this digest."""
        with self._words() as words:
            about = ("--type", kind, "--predicate", str(predicate))
            self.tools.run("cosign", "attest", *words, *registry_words(self.insecure), *about, reference.pinned)

    def file(self, path: Path, bundle: Path) -> None:
        """Sign a file; the signature and what is needed to verify it go to `bundle`."""
        with self._words() as words:
            self.tools.run("cosign", "sign-blob", *words, "--bundle", str(bundle), str(path))
        bundle.chmod(0o644)

    @contextmanager
    def _words(self) -> Iterator[tuple[str, ...]]:
        if self.key == KEYLESS:
            yield ("--yes",)
        elif self.logged:
            yield ("--yes", "--key", self.key)
        else:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
                json.dump(_OFFLINE, config)
                config.flush()
                yield ("--yes", "--key", self.key, "--signing-config", config.name)


@dataclass(frozen=True)
class Verifier:
    """Whose signatures count: those of a public key, or of a job's identity and the issuer of its token."""

    tools: Tools
    key: str = ""
    identity: str = ""
    issuer: str = ""
    insecure: bool = False
    logged: bool = False

    @property
    def _words(self) -> tuple[str, ...]:
        if not self.key:
            return ("--certificate-identity-regexp", self.identity, "--certificate-oidc-issuer", self.issuer)
        return ("--key", self.key, *(() if self.logged else ("--insecure-ignore-tlog=true",)))

    def image(self, reference: Reference) -> None:
        """Raises a ClusterError unless it is signed."""
        self.tools.run("cosign", "verify", *self._words, *registry_words(self.insecure), reference.pinned)

    def predicates(self, reference: Reference, kind: str) -> list[Any]:
        """The predicates of this kind that are validly signed and about this digest."""
        words = (*self._words, *registry_words(self.insecure), "--type", kind)
        printed = self.tools.run("cosign", "verify-attestation", *words, reference.pinned)
        return [predicate for line in printed.splitlines() for predicate in _predicate(line, reference.digest)]

    def file(self, path: Path, bundle: Path) -> None:
        """Raises a ClusterError unless the bundle has a signature of the file."""
        self.tools.run("cosign", "verify-blob", *self._words, "--bundle", str(bundle), str(path))


def registry_words(insecure: bool) -> tuple[str, ...]:
    """For a registry without TLS."""
    return ("--allow-http-registry", "--allow-insecure-registry") if insecure else ()


def _predicate(line: str, digest: str) -> Iterator[Any]:
    if not line.startswith("{"):
        return
    envelope = json.loads(line)
    statement = json.loads(base64.b64decode(envelope["payload"]))
    subjects = {subject["digest"].get("sha256") for subject in statement["subject"]}
    if digest.removeprefix("sha256:") in subjects:
        yield statement["predicate"]
