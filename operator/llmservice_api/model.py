"""spec.model: which model, where it comes from, and its names for clients.

URIs of models, draft models and adapters are parsed here. The CRD has the same rules in CEL; these are for stored
objects.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from llmservice_runtime import contract
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
    Rule,
    SecretKeyRef,
    SecretRef,
    ServedName,
    Uri,
    cel_string,
    knob,
    section,
)
from llmservice_api.errors import InvalidSpec, Problem

FIELD = "spec.model.uri"

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
    """Its name in SCHEMES; in Azure a bucket is a container."""


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
        raise _invalid(field, f"{uri!r} is no {name}:// URI.", f"Write {scheme.described}.")
    return scheme.make(match.groupdict(default=""))


def _invalid(field: str, message: str, remedy: str) -> InvalidSpec:
    return InvalidSpec([Problem(field, message, remedy)])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A setting without which a URI says too little."""

    setting: str
    """Its name in the access' section of spec.model, in camelCase."""
    variable: str
    """The variable in spec.runtime.env that replaces it."""
    problem: str
    """For messages, after the form of the URI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The settings and credentials with which files are fetched."""

    field: str
    """Of spec.model, in snake_case: a section, or the reference to a token."""
    place: str
    """For messages: only for models from PLACE."""
    prefixes: tuple[str, ...]
    """Of the variables in spec.runtime.env that its clients read."""
    by_hand: str
    """The variables with credentials, for users of the command line."""
    secret: Callable[["Model"], SecretRef | SecretKeyRef | None]
    keys: tuple[str, ...] = ()
    """Variables from the Secret, by the names of its keys. For a SecretKeyRef: the one variable."""
    optional_keys: tuple[str, ...] = ()
    """Further ones, which the Secret may lack."""
    settings: Callable[["Model"], Mapping[str, str | None]] = lambda _: {}
    """Variables without credentials, and their values; None where the field is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The URIs NAME://REST: their syntax, and how the files are reached."""

    form: str
    """For messages; an optional part is last, in brackets."""
    meaning: str = ""
    """For messages, after the form."""
    pattern: str
    """Of REST, for Python's re and for RE2 in CEL."""
    make: Callable[[Mapping[str, str]], Source]
    """The source for the pattern's groups."""
    access: Access | None = None
    """None: the files are not fetched. Schemes may share one."""
    needed: Needed | None = None
    not_inspected: str = ""
    """Why no Job inspects the model, for messages; empty where one does."""
    loose_pattern: str | None = None
    """Instead of `pattern` in CEL, where `rules` check the rest with messages of their own."""
    rules: tuple[Rule, ...] = ()
    """Further rules of objects with a field `uri`."""

    @property
    def shortest(self) -> str:
        """The form without its optional part."""
        return self.form.partition("[")[0]

    @property
    def described(self) -> str:
        """Every form, and the meaning."""
        longest = self.form.replace("[", "").replace("]", "")
        forms = self.form if longest == self.form else f"{self.shortest} or {longest}"
        return f"{forms}: {self.meaning}" if self.meaning else forms


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "hf": Scheme(
            form="hf://ORG/NAME[@REVISION]",
            pattern=rf"(?P<repo>{HF_REPO})(@(?P<revision>{HF_REVISION}))?",
            make=lambda part: HubSource(part["repo"], part["revision"] or None),
            access=Access(
                field="hf_token_secret_ref",
                place="the Hugging Face hub",
                prefixes=("HF_", "HUGGING_FACE_"),
                by_hand=contract.HF_TOKEN_ENV,
                secret=lambda model: model.hf_token_secret_ref,
                keys=(contract.HF_TOKEN_ENV,),
            ),
            loose_pattern=f"{HF_REPO}(@.*)?",
            rules=(
                Rule(
                    "!self.uri.startsWith('hf://') || !self.uri.contains('@') || "
                    f"self.uri.matches({cel_string(f'^[^@]*@{HF_REVISION}$')})",
                    "what follows @ must be one branch, tag or commit of at most 128 letters, digits and . _ / -, for "
                    "example hf://ORG/NAME@main; without a revision leave the @ out",
                    ".uri",
                ),
            ),
        ),
        "s3": Scheme(
            form="s3://BUCKET/PREFIX",
            meaning="a bucket's name and what the keys of the files begin with",
            pattern=rf"(?P<bucket>{BUCKET})(/(?P<path>{PATH})?)?",
            make=lambda part: BucketSource(part["bucket"], part["path"].rstrip("/")),
            access=Access(
                field="s3",
                place="S3",
                prefixes=("AWS_",),
                by_hand="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                secret=lambda model: model.s3.credentials_secret_ref,
                keys=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
                # Only temporary keys have a token.
                optional_keys=("AWS_SESSION_TOKEN",),
                settings=lambda model: {
                    "AWS_ENDPOINT_URL_S3": model.s3.endpoint,
                    "AWS_REGION": model.s3.region,
                    "AWS_DEFAULT_REGION": model.s3.region,
                },
            ),
        ),
        "gs": Scheme(
            form="gs://BUCKET/PREFIX",
            meaning="a bucket's name and what the names of the files begin with",
            pattern=rf"(?P<bucket>{GCS_BUCKET})(/(?P<path>{PATH})?)?",
            make=lambda part: BucketSource(part["bucket"], part["path"].rstrip("/"), "gs"),
            access=Access(
                field="gcs",
                place="Google Cloud Storage",
                prefixes=("GOOGLE_",),
                by_hand="GOOGLE_APPLICATION_CREDENTIALS",
                secret=lambda model: model.gcs.credentials_secret_ref,
                keys=("GOOGLE_SERVICE_ACCOUNT_KEY",),
                settings=lambda model: {"GOOGLE_BASE_URL": model.gcs.endpoint},
            ),
        ),
        "az": Scheme(
            form="az://CONTAINER/PREFIX",
            meaning="a container's name and what the names of the files begin with",
            pattern=rf"(?P<bucket>{AZURE_CONTAINER})(/(?P<path>{PATH})?)?",
            make=lambda part: BucketSource(part["bucket"], part["path"].rstrip("/"), "az"),
            access=Access(
                field="azure",
                place="Azure",
                prefixes=("AZURE_",),
                by_hand="AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
                secret=lambda model: model.azure.credentials_secret_ref,
                # A key, a signature, or a client.
                optional_keys=(
                    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
                    "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
                ),
                settings=lambda model: {
                    "AZURE_STORAGE_ACCOUNT_NAME": model.azure.account,
                    "AZURE_STORAGE_ENDPOINT": model.azure.endpoint,
                },
            ),
            needed=Needed(
                setting="account",
                variable="AZURE_STORAGE_ACCOUNT_NAME",
                problem="does not say whose container it is",
            ),
        ),
        "pvc": Scheme(
            form="pvc://CLAIM/PATH",
            meaning="a claim's name and a path in it",
            pattern=rf"(?P<claim>{CLAIM})(/(?P<path>{PATH})?)?",
            make=lambda part: ClaimSource(part["claim"], part["path"].rstrip("/")),
        ),
        "image": Scheme(
            form="image://REFERENCE[#PATH]",
            meaning="an OCI image and a path in it",
            pattern=rf"(?P<reference>{IMAGE.strip('^$')})(#/?(?P<path>{PATH})?)?",
            make=lambda part: ImageSource(part["reference"], part["path"].rstrip("/")),
            not_inspected="The model is an image, which a look at it would pull as a whole.",
        ),
        "file": Scheme(
            form="file:///PATH",
            meaning="three slashes and a path in the image",
            pattern=rf"(?P<path>/{PATH})",
            make=lambda part: FileSource(part["path"].rstrip("/")),
            not_inspected="The model lies in the runtime image, which only its own pod can read.",
        ),
    }
)  # fmt: skip


def scheme_of(uri: str) -> Scheme:
    """The scheme of a valid URI; KeyError for others."""
    return SCHEMES[uri.partition("://")[0]]


def one_of(words: Sequence[str]) -> str:
    """At least two words as a text: a, b or c."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


_FORMS = tuple(scheme.form for scheme in SCHEMES.values())
URI_FORMS = one_of(_FORMS)
FETCHED = tuple(name for name, scheme in SCHEMES.items() if scheme.access is not None)
"""The schemes whose files are fetched."""
ACCESSES: Mapping[Access, tuple[str, ...]] = MappingProxyType(
    {
        access: tuple(name for name in FETCHED if SCHEMES[name].access is access)
        for access in dict.fromkeys(scheme.access for scheme in SCHEMES.values())
        if access is not None
    }
)
"""Each access, and the schemes that have it."""
ACCESS_FIELDS = frozenset(access.field for access in ACCESSES)


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
        description=f"Where the model is: {', '.join(_FORMS[:-1])}, or {_FORMS[-1]} of the runtime image. "
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
