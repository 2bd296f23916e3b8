"""spec.model.s3, .gcs, .azure: how buckets are reached."""

from typing import Annotated

from pydantic import StringConstraints

from llmservice_operator.api.base import ApiModel, knob
from llmservice_operator.api.scalars import SecretKeyRef, SecretRef

HttpUrl = Annotated[
    str,
    StringConstraints(min_length=8, max_length=512, pattern=r"^https?://[A-Za-z0-9]([A-Za-z0-9.:/_-]*[A-Za-z0-9/])?$"),
]
Region = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
AzureAccount = Annotated[str, StringConstraints(min_length=3, max_length=24, pattern=r"^[a-z0-9]+$")]


class S3(ApiModel):
    """How s3:// buckets are reached."""

    endpoint: HttpUrl | None = knob(
        description="Address of the S3 API, for stores other than AWS. Default: AWS's own for the region.",
        examples=["https://minio.storage.svc:9000"],
    )
    region: Region | None = knob(
        description="Region that the bucket is in, for AWS. Default: what the environment says, or us-east-1.",
        examples=["eu-central-1"],
    )
    credentials_secret_ref: SecretRef | None = knob(
        description="Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if temporary, AWS_SESSION_TOKEN. The "
        "kubelet hands them to the pod. Without it the pod's own identity is used (its service account), and then "
        "none, for public buckets. See docs/serving/model-sources.md.",
        examples=[{"name": "bucket-keys"}],
    )


class Gcs(ApiModel):
    """How gs:// buckets are reached."""

    endpoint: HttpUrl | None = knob(
        description="Address of the API, for servers other than Google's.", examples=["https://gcs.storage.svc:4443"]
    )
    credentials_secret_ref: SecretKeyRef | None = knob(
        description="Secret key with a service account's key (JSON). The kubelet hands it to the pod; it never becomes "
        "a file. Without it the pod's own identity is used (Workload Identity), and then none, for public buckets.",
        examples=[{"name": "bucket-reader", "key": "key.json"}],
    )


class Azure(ApiModel):
    """How az:// containers are reached."""

    account: AzureAccount | None = knob(
        description="The storage account that the containers are in.", examples=["weights"]
    )
    endpoint: HttpUrl | None = knob(
        description="Address of the blob service, for other clouds and servers. Default: "
        "https://ACCOUNT.blob.core.windows.net.",
        examples=["https://weights.blob.core.chinacloudapi.cn"],
    )
    credentials_secret_ref: SecretRef | None = knob(
        description="Secret with AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN, or AZURE_TENANT_ID, "
        "AZURE_CLIENT_ID and AZURE_CLIENT_SECRET. The kubelet hands them to the pod. Without it the pod's own identity "
        "is used (Workload Identity), and then none, for public containers.",
        examples=[{"name": "azure-keys"}],
    )
