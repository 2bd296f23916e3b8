"""The certificate that /metrics is served with, from a folder as a Secret is mounted: tls.crt and tls.key."""

from __future__ import annotations

import asyncio
import logging
import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # CPython's own reader of certificates, not in typeshed
from pathlib import Path

from llmservice_operator.kube.errors import ConfigError

logger = logging.getLogger(__name__)

LOOK_AGAIN = 60.0
"""Seconds between looks for a renewed certificate."""


def expires_at(certificate: Path) -> float:
    """When the first certificate of a PEM file ends, in Unix time; OSError or ssl.SSLError where it cannot be read."""
    return float(ssl.cert_time_to_seconds(_test_decode_cert(str(certificate))["notAfter"]))


class Certificate:
    """A context for a server; connections that begin after a renewal get the new certificate."""

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key = folder / "tls.crt", folder / "tls.key"
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""
        self.expires_at = 0.0
        """When the certificate in use ends, in Unix time."""
        try:
            self.refresh()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read the certificate in {folder}: {error}", remedy="a Secret of type kubernetes.io/tls has it"
            ) from error

    def refresh(self) -> bool:
        """Load the files; returns whether they changed."""
        found = self._certificate.read_bytes() + self._key.read_bytes()
        if found == self._loaded:
            return False
        self.context.load_cert_chain(self._certificate, self._key)
        self.expires_at = expires_at(self._certificate)
        self._loaded = found
        return True

    async def keep_fresh(self) -> None:
        """Reload it once a minute; never returns. Where a renewal cannot be read, the earlier one stays in use."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                if await asyncio.to_thread(self.refresh):
                    logger.info("the certificate of /metrics was renewed")
            except (OSError, ssl.SSLError) as error:
                logger.warning("cannot read the renewed certificate of /metrics: %s", error)
