"""What the unit tests of buckets share: a bucket as the fetch makes it, its failures, and credentials."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from llmservice_fetch.buckets import Bucket
from llmservice_fetch.failed import FetchFailed
from llmservice_runtime.contract import FailureReason

AWS_KEYS = {"AWS_ACCESS_KEY_ID": "AKIATHEKEY", "AWS_SECRET_ACCESS_KEY": "the-secret-of-aws"}
AZURE_KEY = {"AZURE_STORAGE_ACCOUNT_KEY": "dGhlLWtleS1vZi1henVyZQ=="}
SAS = {"AZURE_STORAGE_SAS_TOKEN": "?sv=2024-01-01&sr=c&sp=rl&sig=c2lnbmF0dXJl%2Fof%2Bazure%3D"}


def bucket(environment: dict[str, str], uri: str = "s3://models/team/tiny") -> Bucket:
    """As of a URI."""
    found = Bucket.of(uri, "spec.model.uri", environment, lambda _: None)
    assert found is not None
    return found


def failure(ask: Callable[[], object]) -> tuple[FailureReason, str, str]:
    """Its reason, message and remedy."""
    with pytest.raises(FetchFailed) as caught:
        ask()
    found = caught.value.failure
    return found.reason, found.message, found.remedy


def google_key() -> str:
    """A service account's key, as Google gives it out."""
    made = subprocess.run(["openssl", "genrsa", "2048"], capture_output=True, text=True, check=True).stdout
    named = {"type": "service_account", "client_email": "reader@models.example", "private_key_id": "1"}
    return json.dumps(named | {"private_key": made})
