"""Server certificate and client CA, from the folder of a mounted Secret."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
from kubeloop.errors import ConfigError
from kubeloop.health import expires_at

logger = logging.getLogger(__name__)

RELOAD_SECONDS = 60.0
"""Seconds between checks for a renewed certificate."""
FILES = ("tls.crt", "tls.key", "ca.crt")


@dataclass(frozen=True)
class Loaded:
    """Contents of the three files, and the certificate's expiry in Unix time."""

    certificate: bytes
    key: bytes
    authority: bytes
    expires_at: float


class MutualTls:
    """gRPC credentials that require a client certificate; new connections use a renewed certificate."""

    def __init__(self, folder: Path) -> None:
        """ConfigError where the folder has no valid certificate."""
        self._folder = folder
        try:
            self._loaded = _read(folder)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read {', '.join(FILES)} in {folder}: {error}",
                remedy="autoscaling.tls.secretName of the chart names the Secret that has them; see "
                "docs/serving/scaling.md",
            ) from error
        self._renewed: grpc.ServerCertificateConfiguration | None = None

    @property
    def expires_at(self) -> float:
        return self._loaded.expires_at

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`, once."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._loaded),
            self._take_renewed,  # type: ignore[arg-type]  # the stubs do not know None, which gRPC documents
            require_client_authentication=True,
        )

    def _take_renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """A renewed configuration once, else None. Called at each handshake, in threads of gRPC.

        gRPC replaces the configuration of all handshakes with each result; with the same one returned repeatedly, under
        many connections at once, the process was aborted.
        """
        renewed, self._renewed = self._renewed, None
        return renewed

    def refresh(self) -> bool:
        """Read the files; returns whether they changed. After OSError or ssl.SSLError the earlier ones stay in use."""
        found = _read(self._folder)
        if found == self._loaded:
            return False
        self._renewed, self._loaded = _configuration(found), found
        return True

    async def keep_fresh(self) -> None:
        """Refresh once a minute; never returns."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                if await asyncio.to_thread(self.refresh):
                    logger.info("the scaler's certificate was renewed")
            except (OSError, ssl.SSLError) as error:
                logger.warning("cannot read the scaler's renewed certificate: %s", error)


def _read(folder: Path) -> Loaded:
    """The three files, checked to match: gRPC itself would only refuse every connection."""
    certificate, key, authority = (folder / name for name in FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    return Loaded(certificate.read_bytes(), key.read_bytes(), authority.read_bytes(), expires_at(certificate))


def _configuration(loaded: Loaded) -> grpc.ServerCertificateConfiguration:
    pairs = [(loaded.key, loaded.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=loaded.authority)
