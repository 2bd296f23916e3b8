"""spec.startCache: what makes the next start of a server faster."""

from llmservice_operator.api.base import SET, ApiModel, Many, knob
from llmservice_operator.api.model import AccessMode
from llmservice_operator.api.scalars import ObjectName, Quantity


class StartCache(ApiModel):
    """A volume that keeps compiled code, so that the next pod does not compile it again."""

    size: Quantity = knob(
        ...,
        description="Size of the PersistentVolumeClaim, NAME-start-cache, that the operator makes. It may grow where "
        "the storage class allows it.",
        examples=["2Gi"],
    )
    storage_class_name: ObjectName | None = knob(
        description="Storage class of the claim that the operator makes. Default: the cluster's own. It cannot be "
        "changed later.",
        examples=["fast-ssd"],
    )
    access_modes: Many[AccessMode] | None = knob(
        description="Access modes of the claim, as of model.cache. Default: [ReadWriteOnce], for pods of one node. "
        "They cannot be changed later.",
        examples=[["ReadWriteMany"]],
        min_length=1,
        max_length=3,
        json_schema_extra=SET,
        effective=["ReadWriteOnce"],
    )
