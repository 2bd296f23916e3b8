"""The whole texts of a bucket's failures, for each cloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from llmservice_fetch.bucket_errors import AccessedBucket, ParsedError, explained, no_credentials
from llmservice_fetch.clouds import CLOUDS
from llmservice_runtime.contract import FailureReason as R

from tests.support.buckets import failure

UNKNOWN = ParsedError(
    status=0, code="", text="", url="", region="", bare_redirect=False, words="The server's words.", is_request=True,
    is_body=False, is_redacted=False,
)  # fmt: skip
REFUSED = replace(UNKNOWN, status=403, code="InvalidToken")
DENIED = replace(UNKNOWN, status=403)
ABSENT = replace(UNKNOWN, status=404)


def target(scheme: str) -> AccessedBucket:
    account = "weights" if scheme == "az" else ""
    return AccessedBucket(CLOUDS[scheme].wording, "models", f"{scheme}://models/a", "spec.model.uri", "", account, True)


def of_listing(parsed: ParsedError, **changes: Any) -> Callable[[str], Exception]:
    return lambda scheme: explained(parsed, replace(target(scheme), **changes), listing=True)


ERRORS: dict[str, tuple[Callable[[str], Exception], R]] = {
    "not accepted": (of_listing(REFUSED), R.MODEL_TOKEN_REFUSED),
    "no role": (lambda scheme: no_credentials(REFUSED, scheme, CLOUDS[scheme].wording), R.MODEL_TOKEN_REFUSED),
    "denied": (of_listing(DENIED), R.MODEL_ACCESS_DENIED),
    "denied, unsigned": (of_listing(DENIED, signed=False), R.MODEL_ACCESS_DENIED),
    "no bucket": (of_listing(ABSENT), R.MODEL_NOT_FOUND),
    "no bucket, unsigned": (of_listing(ABSENT, signed=False), R.MODEL_NOT_FOUND),
    "no bucket on a server": (of_listing(ABSENT, endpoint="https://store.example"), R.MODEL_NOT_FOUND),
}
TEXTS = """
s3:
  not accepted:
  - "The S3 server does not accept the credentials (InvalidToken): The server's words."
  - &s3-keys "Check the keys in the Secret that spec.model.s3.credentialsSecretRef names, or the service account's
    role, and the clock of the node."
  no role:
  - "The credentials for s3:// cannot be used, or their role gives none (InvalidToken): The server's words."
  - *s3-keys
  denied:
  - "The S3 server does not let these credentials read s3://models/a: The server's words."
  - &s3-rights "Give credentials in spec.model.s3.credentialsSecretRef that may list the bucket and read its objects
    (s3:ListBucket and s3:GetObject)."
  denied, unsigned:
  - "The S3 server does not let anybody without credentials read s3://models/a: The server's words."
  - *s3-rights
  no bucket:
  - There is no bucket models at AWS.
  - &s3-bucket Check spec.model.uri. A bucket of another server needs spec.model.s3.endpoint.
  no bucket, unsigned: [There is no bucket models at AWS., *s3-bucket]
  no bucket on a server: ["There is no bucket models at https://store.example.", *s3-bucket]
gs:
  not accepted:
  - "Google Cloud Storage does not accept the credentials (InvalidToken): The server's words."
  - &gs-key "Check the key in the Secret that spec.model.gcs.credentialsSecretRef names, or the service account's
    role, and the clock of the node."
  no role:
  - "The credentials for gs:// cannot be used, or their role gives none (InvalidToken): The server's words."
  - *gs-key
  denied:
  - "Google Cloud Storage does not let these credentials read gs://models/a: The server's words."
  - &gs-rights "Give credentials in spec.model.gcs.credentialsSecretRef that may list the bucket and read its objects
    (storage.objects.list and storage.objects.get)."
  denied, unsigned:
  - "Google Cloud Storage does not let anybody without credentials read gs://models/a: The server's words."
  - *gs-rights
  no bucket:
  - There is no bucket models at Google Cloud.
  - &gs-bucket Check spec.model.uri. A bucket of another server needs spec.model.gcs.endpoint.
  no bucket, unsigned:
  - There is no bucket models at Google Cloud.
  - "Check spec.model.uri. A bucket of another server needs spec.model.gcs.endpoint. A private one needs
    spec.model.gcs.credentialsSecretRef."
  no bucket on a server: ["There is no bucket models at https://store.example.", *gs-bucket]
az:
  not accepted:
  - "Azure Blob Storage does not accept the credentials (InvalidToken): The server's words."
  - &az-keys "Check the keys in the Secret that spec.model.azure.credentialsSecretRef names, or the service account's
    role, and the clock of the node."
  no role:
  - "The credentials for az:// cannot be used, or their role gives none (InvalidToken): The server's words."
  - *az-keys
  denied:
  - "Azure Blob Storage does not let these credentials read az://models/a: The server's words."
  - &az-rights "Give credentials in spec.model.azure.credentialsSecretRef that may list the container and read its
    objects (the role Storage Blob Data Reader, or a SAS with the permissions rl)."
  denied, unsigned:
  - "Azure Blob Storage does not let anybody without credentials read az://models/a: The server's words."
  - *az-rights
  no bucket:
  - There is no container models at the account weights of Azure.
  - &az-container Check spec.model.uri. A container of another server needs spec.model.azure.endpoint.
  no bucket, unsigned:
  - There is no container models at the account weights of Azure.
  - "Check spec.model.uri. A container of another server needs spec.model.azure.endpoint. A private one needs
    spec.model.azure.credentialsSecretRef."
  no bucket on a server: ["There is no container models at https://store.example.", *az-container]
"""


def raised(error: Exception) -> tuple[R, str, str]:
    def throw() -> None:
        raise error

    return failure(throw)


@pytest.mark.parametrize("scheme", CLOUDS)
@pytest.mark.parametrize("case", ERRORS)
def test_what_a_failure_of_a_bucket_says(case: str, scheme: str) -> None:
    error, reason = ERRORS[case]
    assert raised(error(scheme)) == (reason, *yaml.safe_load(TEXTS)[scheme][case])


def test_a_cloud_may_have_error_codes_of_its_own() -> None:
    """Another cloud with the same code is not meant by it."""
    own = replace(CLOUDS["s3"].wording, bad_keys=frozenset({"NoSuchKeyPair"}), no_bucket=frozenset({"NoSuchVault"}))
    for code, reason in (("NoSuchKeyPair", R.MODEL_TOKEN_REFUSED), ("NoSuchVault", R.MODEL_NOT_FOUND)):
        parsed = replace(DENIED, code=code)
        assert raised(explained(parsed, replace(target("s3"), wording=own), listing=False))[0] is reason
        assert raised(explained(parsed, target("s3"), listing=False))[0] is R.MODEL_ACCESS_DENIED
