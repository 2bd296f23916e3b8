"""The clouds whose buckets can be read: credentials, stores, addresses, published hashes and terms of each.

obstore finds credentials as the clouds' own programs do (keys, a web identity, a pod's role, the machine's role), but
fails without any. The identity is therefore chosen here, so that a public bucket needs no credentials. The URIs,
and the variables that the operator sets, are in llmservice_api/model.py.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from email.message import Message
from typing import Any

from obstore.store import AzureStore, GCSStore, S3Store

from llmservice_fetch import failed
from llmservice_fetch.bucket_errors import Wording
from llmservice_fetch.bucket_stores import Access, Cloud, Headers, Identity
from llmservice_fetch.files import Digest

_MD5 = re.compile(r"[0-9a-f]{32}")


def _chosen(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """obstore's keys are the variables' names."""
    return {name.lower(): given[name] for name in names if name in given}


def _decoded(text: str) -> Digest | None:
    try:
        value = base64.b64decode(text, validate=True).hex()
    except (binascii.Error, ValueError):
        return None
    return Digest("md5", value) if _MD5.fullmatch(value) else None


_DEFAULT_REGION = "us-east-1"


def _s3_access(cloud: Cloud, bucket: str, given: Mapping[str, str]) -> Access:
    endpoint = (given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL") or "").rstrip("/")
    config = {"virtual_hosted_style_request": "false" if endpoint or "." in bucket else "true"}
    if endpoint:
        config["aws_endpoint_url_s3"] = endpoint
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    role = ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS")
    pod = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    task = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",)
    identity = Identity.GIVEN
    if all(name in given for name in keys[:2]):
        config |= _chosen(given, keys)
    elif all(name in given for name in role[:2]):
        config |= {"aws_role_session_name": "llmservice"} | _chosen(given, role)
    elif pod[0] in given or task[0] in given:
        if task[0] not in given and pod[1] not in given:
            # obstore would use the machine's role instead.
            raise failed.token_refused(f"{pod[0]} is used with {pod[1]} only, which is not set.", f"Set {pod[1]}.")
        config |= _chosen(given, (*pod, *task))
    elif endpoint or given.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        identity = Identity.NOBODY
    else:
        identity = Identity.MACHINE
    region = given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    return Access(cloud, bucket, endpoint, identity, config, region=region, signs=True)


def _s3_open(access: Access, config: dict[str, Any], options: dict[str, Any]) -> S3Store:
    return S3Store(access.bucket, config=config | {"region": access.region}, **options)  # type: ignore[arg-type]


def _s3_address(access: Access, path: str) -> str:
    if access.endpoint:
        return f"{access.endpoint}/{access.bucket}/{path}"
    if "." in access.bucket:
        return f"https://s3.{access.region}.amazonaws.com/{access.bucket}/{path}"
    return f"https://{access.bucket}.s3.{access.region}.amazonaws.com/{path}"


def _s3_digest(headers: Headers, tag: str) -> Digest | None:
    """The ETag is the MD5, except for multipart objects and those encrypted with other keys than S3's own."""
    encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
    hidden = encrypted or "x-amz-server-side-encryption-customer-algorithm" in headers
    value = tag.strip('"')
    return Digest("md5", value) if _MD5.fullmatch(value) and not hidden else None


_S3 = Cloud(
    scheme="s3",
    wording=Wording(
        server="The S3 server",
        name="bucket",
        own="AWS",
        section="spec.model.s3",
        rights="s3:ListBucket and s3:GetObject",
        hides_private=False,
    ),
    access=_s3_access,
    open=_s3_open,
    address=_s3_address,
    digest=_s3_digest,
    has_regions=True,
)

_GOOGLE_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")


def _gs_access(cloud: Cloud, bucket: str, given: Mapping[str, str]) -> Access:
    endpoint = given.get("GOOGLE_BASE_URL", "").rstrip("/")
    names = ("GOOGLE_SERVICE_ACCOUNT_KEY", *_GOOGLE_FILES, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN")
    # Only one, because obstore refuses two; the Secret of the spec comes first.
    chosen = next((_chosen(given, (name,)) for name in names if name in given), {})
    config = chosen | ({"google_base_url": endpoint} if endpoint else {})
    identity = Identity.GIVEN if chosen else Identity.NOBODY if endpoint else Identity.MACHINE
    return Access(cloud, bucket, endpoint, identity, config, signs="google_service_account_key" in config)


def _gs_open(access: Access, config: dict[str, Any], options: dict[str, Any]) -> GCSStore:
    # obstore also reads these variables itself, and refuses two of them.
    for name in _GOOGLE_FILES:
        if name.lower() not in config:
            os.environ.pop(name, None)
    return GCSStore(access.bucket, config=config, **options)  # type: ignore[arg-type]


def _gs_address(access: Access, path: str) -> str:
    return f"{access.endpoint or 'https://storage.googleapis.com'}/{access.bucket}/{path}"


def _gs_digest(headers: Headers, tag: str) -> Digest | None:
    values = headers.get_all("x-goog-hash") if isinstance(headers, Message) else [headers.get("x-goog-hash", "")]
    parts = [part.strip() for text in values or () for part in text.split(",")]
    return _decoded(next((part[4:] for part in parts if part.startswith("md5=")), ""))


_GS = Cloud(
    scheme="gs",
    wording=Wording(
        server="Google Cloud Storage",
        name="bucket",
        own="Google Cloud",
        section="spec.model.gcs",
        rights="storage.objects.list and storage.objects.get",
        keys="key",
    ),
    access=_gs_access,
    open=_gs_open,
    address=_gs_address,
    digest=_gs_digest,
)


def _az_access(cloud: Cloud, bucket: str, given: Mapping[str, str]) -> Access:
    account = given.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    endpoint = (given.get("AZURE_STORAGE_ENDPOINT") or given.get("AZURE_ENDPOINT") or "").rstrip("/")
    key = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
    sas = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
    client = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST")
    proofs = ("AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
    identity, config = Identity.GIVEN, {"azure_storage_account_name": account}
    for names in (key[:1], key[1:], sas[:1], sas[1:]):
        if found := _chosen(given, names):
            config |= {name: value.lstrip("?") for name, value in found.items()}
            break
    else:
        config |= _chosen(given, client)
        proof = next((_chosen(given, (name,)) for name in proofs if name in given), {})
        config |= proof
        if not proof:
            identity = Identity.NOBODY if endpoint else Identity.MACHINE
    if endpoint:
        config["azure_storage_endpoint"] = endpoint
    signs = any(name.lower() in config for name in key)
    return Access(cloud, bucket, endpoint, identity, config, account=account, signs=signs)


def _az_open(access: Access, config: dict[str, Any], options: dict[str, Any]) -> AzureStore:
    return AzureStore(access.bucket, config=config, **options)  # type: ignore[arg-type]


def _az_address(access: Access, path: str) -> str:
    return f"{access.endpoint or f'https://{access.account}.blob.core.windows.net'}/{access.bucket}/{path}"


def _az_digest(headers: Headers, tag: str) -> Digest | None:
    return _decoded(headers.get("Content-MD5") or "")


_AZ = Cloud(
    scheme="az",
    wording=Wording(
        server="Azure Blob Storage",
        name="container",
        own="Azure",
        section="spec.model.azure",
        rights="the role Storage Blob Data Reader, or a SAS with the permissions rl",
    ),
    access=_az_access,
    open=_az_open,
    address=_az_address,
    digest=_az_digest,
    # Signatures contain permissions, and obstore grants none for HEAD.
    signed_method="GET",
    hides_urls=True,
    no_account=("does not say in which storage account it is", "Set spec.model.azure.account."),
)

CLOUDS: Mapping[str, Cloud] = {cloud.scheme: cloud for cloud in (_S3, _GS, _AZ)}
