"""Small types for several parts of the spec."""

from typing import Annotated

from pydantic import Field, StringConstraints, WithJsonSchema

from llmservice_api.base import ApiModel

DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY = r"^[0-9]{1,12}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)$"
QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
IMAGE = (
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[a-f0-9]{64})?$"
)

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
ImageRef = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=IMAGE)]
Quantity = Annotated[str, StringConstraints(min_length=2, max_length=25, pattern=QUANTITY)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
ServedName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")
]


def integer_or_auto_schema(most: int) -> WithJsonSchema:
    """The CRD's schema of an integer from 1 to `most`, or `auto`."""
    return WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": most,
            "maxLength": 4,
            "pattern": "^auto$",
        }
    )


class SecretKeyRef(ApiModel):
    """One key of a Secret in the namespace of the LLMService."""

    name: ObjectName = Field(description="Name of a Secret in the same namespace.")
    key: DataKey = Field(description="Key in the Secret's data that has the value.")


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the namespace of the LLMService."""

    name: ObjectName = Field(description="Name of a ConfigMap in the same namespace.")
    key: DataKey = Field(description="Key in the ConfigMap's data that has the text.")


class SecretRef(ApiModel):
    """A Secret in the namespace of the LLMService."""

    name: ObjectName = Field(description="Name of a Secret in the same namespace.")
