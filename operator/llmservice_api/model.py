"""spec.model: which model, where it comes from, and its names for clients.

URIs of models, draft models and adapters are parsed here. The CRD has the same rules in CEL; these are for stored
objects.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from llmservice_api.base import (
    IMAGE,
    SET,
    ApiModel,
    ConfigMapKeyRef,
    Knob,
    Many,
    ObjectName,
    Quantity,
    SecretKeyRef,
    SecretRef,
    ServedName,
    Uri,
    knob,
    section,
)
from llmservice_api.errors import InvalidSpec, Problem

FIELD = "spec.model.uri"
URI_FORMS = (
    "hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, pvc://CLAIM/PATH, "
    "image://REFERENCE[#PATH] or file:///PATH"
)

HF_REPO = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HF_REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
GCS_BUCKET = r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"
AZURE_CONTAINER = r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"
CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
PATH = r"[^\s@:?#\\/]+(/[^\s@:?#\\/]+)*/?"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face hub, or on the server in HF_ENDPOINT."""

    repo: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class BucketSource:
    """The objects of a bucket whose keys start with a prefix; empty: the whole bucket."""

    bucket: str
    prefix: str = ""
    scheme: str = "s3"
    """s3, gs or az; a bucket is a container in Azure."""


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A folder in a PersistentVolumeClaim; empty path: its root."""

    claim: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A folder in an OCI image that is mounted as a volume; empty path: its root."""

    reference: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder of the runtime image."""

    path: str


Source = HubSource | BucketSource | ClaimSource | ImageSource | FileSource


def is_fetched(source: Source) -> bool:
    """Whether the files are downloaded before vLLM starts."""
    return isinstance(source, HubSource | BucketSource)


@functools.lru_cache(maxsize=1024)
def parse(uri: str, field: str = FIELD) -> Source:
    """Parse a URI; InvalidSpec with a Problem of the field."""
    name, separator, rest = uri.partition("://")
    scheme = SCHEMES.get(name)
    if not separator or scheme is None:
        raise _invalid(field, f"{uri!r} has no scheme that this version serves.", f"Write {URI_FORMS}.")
    if ".." in rest or "//" in rest:
        raise _invalid(field, f"{uri!r} holds '..' or '//'.", "Write the plain path.")
    match = re.fullmatch(scheme.pattern, rest)
    if match is None:
        raise _invalid(field, f"{uri!r} is no {name}:// URI.", f"Write {scheme.form}.")
    return scheme.make(match.groupdict(default=""))


def _invalid(field: str, message: str, remedy: str) -> InvalidSpec:
    return InvalidSpec([Problem(field, message, remedy)])


@dataclass(frozen=True, slots=True)
class Scheme:
    """The part after NAME://: pattern, form for messages, and constructor of its source."""

    pattern: str
    """For Python's re and for RE2 in CEL."""
    form: str
    make: Callable[[Mapping[str, str]], Source]


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "hf": Scheme(
            rf"(?P<repo>{HF_REPO})(@(?P<revision>{HF_REVISION}))?",
            "hf://ORG/NAME or hf://ORG/NAME@REVISION",
            lambda part: HubSource(part["repo"], part["revision"] or None),
        ),
        "s3": Scheme(
            rf"(?P<bucket>{BUCKET})(/(?P<path>{PATH})?)?",
            "s3://BUCKET/PREFIX: a bucket's name and what the keys of the files begin with",
            lambda part: BucketSource(part["bucket"], part["path"].rstrip("/")),
        ),
        "gs": Scheme(
            rf"(?P<bucket>{GCS_BUCKET})(/(?P<path>{PATH})?)?",
            "gs://BUCKET/PREFIX: a bucket's name and what the names of the files begin with",
            lambda part: BucketSource(part["bucket"], part["path"].rstrip("/"), "gs"),
        ),
        "az": Scheme(
            rf"(?P<bucket>{AZURE_CONTAINER})(/(?P<path>{PATH})?)?",
            "az://CONTAINER/PREFIX: a container's name and what the names of the files begin with",
            lambda part: BucketSource(part["bucket"], part["path"].rstrip("/"), "az"),
        ),
        "pvc": Scheme(
            rf"(?P<claim>{CLAIM})(/(?P<path>{PATH})?)?",
            "pvc://CLAIM/PATH: a claim's name and a path in it",
            lambda part: ClaimSource(part["claim"], part["path"].rstrip("/")),
        ),
        "image": Scheme(
            rf"(?P<reference>{IMAGE.strip('^$')})(#/?(?P<path>{PATH})?)?",
            "image://REFERENCE or image://REFERENCE#PATH: an OCI image and a path in it",
            lambda part: ImageSource(part["reference"], part["path"].rstrip("/")),
        ),
        "file": Scheme(
            rf"(?P<path>/{PATH})",
            "file:///PATH: three slashes and a path in the image",
            lambda part: FileSource(part["path"].rstrip("/")),
        ),
    }
)


# spec.model.s3, .gcs, .azure: access to buckets.

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


ModelWord = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]

_WIDTH, _HEADS, _LAYERS = 1_048_576, 65_536, 1024


def _fact(description: str, example: int, most: int, *, least: int = 1) -> Any:
    """An integer of config.json within bounds."""
    return knob(description=description, examples=[example], bounds=(least, most))


class Architecture(ApiModel):
    """Facts from the model's config.json, for checks before any pod is made. They go before what the file says."""

    model_type: ModelWord | None = knob(
        description="model_type in config.json: what the other facts leave open follows from it.",
        examples=["qwen3_moe"],
    )

    num_attention_heads: int | None = _fact(
        "Number of attention heads (num_attention_heads in config.json). With it the operator refuses a "
        "tensorParallelSize that does not divide the heads before any pod is made.",
        32,
        4096,
    )
    num_key_value_heads: int | None = _fact(
        "Number of key/value heads (num_key_value_heads in config.json); fewer than the attention heads "
        "with grouped-query attention, 1 with multi-query attention.",
        8,
        4096,
    )
    num_hidden_layers: int | None = _fact("Number of transformer layers (num_hidden_layers in config.json).", 32, 1024)
    hidden_size: int | None = _fact("Width of the hidden state (hidden_size in config.json).", 4096, _WIDTH)
    vocab_size: int | None = _fact(
        "Number of tokens in the vocabulary (vocab_size in config.json).", 128256, 16_777_216
    )
    max_position_embeddings: int | None = _fact(
        "Longest sequence that the model was made for (max_position_embeddings in config.json).", 131072, 134_217_728
    )
    head_dim: int | None = _fact(
        "Width of one attention head (head_dim in config.json). Default: hiddenSize / numAttentionHeads.", 128, _HEADS
    )
    intermediate_size: int | None = _fact("Width of the MLP; with experts, of layers that have none.", 14336, _WIDTH)
    tie_word_embeddings: bool | None = knob(description="The output head is the embedding once more.", examples=[False])
    dtype: Literal["float32", "bfloat16", "float16"] | None = knob(
        description="Type of the checkpoint's values (dtype or torch_dtype in config.json).", examples=["bfloat16"]
    )
    total_parameters: int | None = _fact(
        "Number of parameters in all, encoders too. The planner scales what it counts to it.",
        8030261248,
        281_474_976_710_656,
    )
    sliding_window: int | None = _fact("Tokens that layers with a sliding window look back on.", 4096, 134_217_728)
    sliding_layers: int | None = _fact("How many layers have the sliding window. Default: all.", 52, _LAYERS, least=0)
    num_global_key_value_heads: int | None = _fact(
        "Key/value heads of the layers without a window, where they have fewer (Gemma 4).", 4, _HEADS
    )
    global_head_dim: int | None = _fact(
        "Width of a head in the layers without a window, where it differs (Gemma 4).", 512, _HEADS
    )
    num_experts: int | None = _fact(
        "Routed experts of a layer (num_local_experts or n_routed_experts in some files).", 128, _HEADS
    )
    num_experts_per_tok: int | None = _fact(
        "Experts that each token uses (num_experts_per_tok in config.json).", 8, _HEADS
    )
    moe_intermediate_size: int | None = _fact(
        "Width of one routed expert (moe_intermediate_size in config.json).", 1536, _WIDTH
    )
    num_shared_experts: int | None = _fact(
        "Experts that every token uses, each as wide as a routed one.", 1, _LAYERS, least=0
    )
    first_k_dense_replace: int | None = _fact(
        "So many layers at the start have a plain MLP and no experts.", 3, _LAYERS, least=0
    )
    kv_lora_rank: int | None = _fact(
        "Rank that keys and values are compressed to: the model has latent attention (MLA).", 512, _WIDTH
    )
    q_lora_rank: int | None = _fact("Rank of compressed queries, with latent attention.", 1536, _WIDTH)
    qk_rope_head_dim: int | None = _fact("Width of the rotated part of a key, with latent attention.", 64, _HEADS)
    qk_nope_head_dim: int | None = _fact("Width of the other part of a key, with latent attention.", 128, _HEADS)
    v_head_dim: int | None = _fact("Width of one head's value, with latent attention.", 128, _HEADS)
    attention_layers: int | None = _fact(
        "How many layers have attention, where the others have linear attention (Qwen3-Next).", 12, _LAYERS, least=0
    )
    linear_num_key_heads: int | None = _fact(
        "Key heads of linear attention (linear_num_key_heads in config.json).", 16, _HEADS
    )
    linear_num_value_heads: int | None = _fact(
        "Value heads of linear attention (linear_num_value_heads in config.json).", 32, _HEADS
    )
    linear_key_head_dim: int | None = _fact("Width of a key head of linear attention.", 128, _HEADS)
    linear_value_head_dim: int | None = _fact("Width of a value head of linear attention.", 128, _HEADS)
    quantization_method: ModelWord | None = knob(
        description="quant_method in config.json's quantization_config: the checkpoint is quantized.", examples=["awq"]
    )
    quantization_bits: int | None = _fact(
        "Bits of one quantized weight (bits in config.json's quantization_config). Default: the method's.", 4, 16
    )
    quantization_group_size: int | None = _fact(
        "Weights that share a scale; 0: a whole channel does. Default: the method's.", 128, _WIDTH, least=0
    )
    positions: Literal["rope", "alibi"] | None = knob(
        description="How the model knows where a token stands: rope (rope_theta or rope_parameters in config.json), or "
        "alibi (BLOOM, MPT and some Falcon models). With alibi the operator refuses contextExtension, and attention "
        "backends that have no ALiBi, before any pod is made.",
        examples=["rope"],
    )


class ChatTemplate(ApiModel):
    """A chat template that replaces the model's own."""

    config_map_key_ref: ConfigMapKeyRef = Field(
        description="ConfigMap key with the Jinja template. A changed text is read by the next pod that starts.",
        examples=[{"name": "chat-templates", "key": "chat.jinja"}],
    )


class Cache(ApiModel):
    """A volume that keeps a downloaded model, so that the next pod does not fetch it again."""

    claim_name: ObjectName | None = knob(
        description="An existing PersistentVolumeClaim, of the same namespace, to keep downloaded models in. It is "
        "never deleted by the operator. Give either this or size.",
        examples=["model-cache"],
    )
    size: Quantity | None = knob(
        description="Size of a PersistentVolumeClaim, NAME-cache, that the operator makes for this service: the size "
        "of the model's files and a quarter more. It may grow where the storage class allows it, and never shrinks. "
        "Give either this or claimName.",
        examples=["100Gi"],
    )
    storage_class_name: ObjectName | None = knob(
        description="Storage class of the claim that the operator makes. Leave it out for the cluster's default. "
        "It cannot be changed later.",
        examples=["fast-ssd"],
    )
    access_modes: Many[AccessMode] | None = knob(
        description="Access modes of the claim that the operator makes. Default: [ReadWriteOnce], which lets only "
        "pods of one node share it; use ReadWriteMany for replicas on several nodes. They cannot be changed later.",
        examples=[["ReadWriteMany"]],
        min_length=1,
        max_length=3,
        json_schema_extra=SET,
    )
    retention_policy: Literal["Delete", "Retain"] | None = knob(
        description="What happens to the claim that the operator made when the LLMService is deleted. "
        "Default: Delete. Retain keeps the downloaded model for a later service of the same name.",
        examples=["Retain"],
    )
    verify: Literal["Size", "Hash"] | None = knob(
        description="What of the cached files is compared with their origin before a pod serves them. Default: Size. "
        "Hash reads every file at each start. A change takes effect with the next rollout.",
        examples=["Hash"],
    )
    prune_after_hours: int | None = knob(
        description="Hours that the cache keeps a revision which no pod serves and no service with pods can roll back "
        "to. Default: 720. A change takes effect with the next rollout.",
        examples=[168],
        bounds=(1, 87_600),
    )

    @property
    def is_enabled(self) -> bool:
        """Whether downloaded models are kept in a claim."""
        return self.claim_name is not None or self.size is not None

    @property
    def is_retained(self) -> bool:
        """Whether the claim outlives the LLMService."""
        return self.retention_policy == "Retain"


class Model(ApiModel):
    """The model and where it comes from."""

    uri: Annotated[Uri, Knob(("--model",))] = Field(
        description="Where the model is: hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
        "az://CONTAINER/PREFIX, pvc://CLAIM/PATH, image://REFERENCE[#PATH], or file:///PATH of the runtime image. "
        "The only field that must be given. See docs/serving/model-sources.md.",
        examples=["hf://Qwen/Qwen2.5-7B-Instruct"],
    )
    served_model_names: Many[ServedName] | None = knob(
        description="Names that clients may give as `model` in a request; the first one labels the metrics. "
        "Default: the name of the LLMService.",
        examples=[["qwen", "qwen2.5-7b"]],
        min_length=1,
        max_length=16,
        json_schema_extra=SET,
        flag="--served-model-name",
    )
    hf_token_secret_ref: SecretKeyRef | None = knob(
        description="Secret key with a Hugging Face token, for gated or private repositories. Only with hf://, of "
        "the model, the draft model or an adapter. The kubelet hands it to the pod; the operator never reads it.",
        examples=[{"name": "hugging-face", "key": "token"}],
    )
    s3: S3 = section(S3, "How s3:// buckets are reached: those of the model, the draft model and the adapters.")
    gcs: Gcs = section(Gcs, "How gs:// buckets are reached, as s3 for s3://.")
    azure: Azure = section(Azure, "How az:// containers are reached, as s3 for s3://.")
    runner: Literal["auto", "generate", "pooling"] = knob(
        "auto",
        description="What the model is used for (--runner): generate text, or pooling: one vector, score or class for "
        "a whole text, as embedding and reranking models do. auto follows the model's architecture. Set pooling to "
        "make vectors with a model that was made to generate.",
        examples=["pooling"],
        flag="--runner",
    )
    convert: Literal["auto", "classify", "embed", "none"] = knob(
        "auto",
        description="What a generating model is made into for the pooling runner (--convert): embed for vectors, "
        "classify for classes and scores. auto follows the model's architecture.",
        examples=["embed"],
        flag="--convert",
    )
    chat_template: ChatTemplate | None = knob(
        description="A chat template from a ConfigMap (--chat-template), for models that bring none or a wrong one. "
        "Default: the model's own.",
        examples=[{"configMapKeyRef": {"name": "chat-templates", "key": "chat.jinja"}}],
        flag="--chat-template",
    )
    trust_remote_code: bool = knob(
        False,
        description="Run Python code that the model's repository brings along. Set it only for models that need it "
        "and that you trust: their code then runs in the pod. Pin a revision in the uri with it.",
        examples=[True],
        flag="--trust-remote-code",
    )
    architecture: Architecture = section(
        Architecture,
        "Facts from the model's config.json. Optional: the operator checks the spec against them before any pod is "
        "made, and plans memory by them where the file cannot be read. They win over the file.",
    )
    cache: Cache = section(
        Cache,
        "Keep a downloaded model in a volume, so that further pods do not fetch it again. Only with hf:// and "
        "buckets. Without it every pod downloads the model into its own scratch space.",
    )

    @property
    def source(self) -> Source:
        """The parsed uri; InvalidSpec."""
        return parse(self.uri)
