"""Authorities and certificates of their own for tests, as files in the way that a Secret is mounted."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder of its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Authority:
        """A new one."""
        folder.mkdir(parents=True)
        _openssl(folder, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "ca.key")
        _openssl(
            folder, "req", "-x509", "-key", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", f"/CN={folder.name}"
        )
        return cls(folder)

    @property
    def certificate(self) -> bytes:
        """In PEM."""
        return (self.folder / "ca.crt").read_bytes()

    def issue(self, target: Path, *, verifies: Authority | None = None) -> Path:
        """Write tls.crt and tls.key for localhost, and ca.crt (of `verifies`, else its own) into `target`."""
        target.mkdir(parents=True, exist_ok=True)
        _openssl(target, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "new.key")
        _openssl(target, "req", "-new", "-key", "new.key", "-out", "new.csr", "-subj", f"/CN={target.name}")
        (target / "new.ext").write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        issuer = ("-CA", str(self.folder / "ca.crt"), "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial")
        _openssl(
            target, "x509", "-req", "-in", "new.csr", *issuer, "-days", "2", "-out", "new.crt", "-extfile", "new.ext"
        )
        (target / "new.key").rename(target / "tls.key")
        (target / "new.crt").rename(target / "tls.crt")
        (target / "ca.crt").write_bytes((verifies or self).certificate)
        return target


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True)
