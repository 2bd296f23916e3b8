"""What is asked: the options of a command line, read once, and a planner's request for each acceptable GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from llmservice_api.errors import Problem
from llmservice_planner import gpus, splits
from llmservice_planner.plan import Adapters, Device, Request
from llmservice_vllm.versions import DEFAULT, default_version, series, words

from llmservice_cli.errors import BadInput

from .arguments import Options
from .models import REMOTE, Model, meant
from .options import OPTIONS, Reading, Values, read_options, share_out
from .values import MOST_GPUS, NotGiven, Quantized, Refused, is_not_given, shown, text

if TYPE_CHECKING:
    from llmservice_api.service import LLMService
    from llmservice_planner.changes import Fields


_OF_REQUEST = tuple(
    one for one in OPTIONS.values() if one.name in Request.__dataclass_fields__ and one.name != "quantization"
)
"""Options that are a field of the request; quantization is two there."""
CPU = "cpu"
_COUNT_FIRST = re.compile(r"(?P<count>\d{1,6})\s*[xX×*]\s*(?P<name>\S.*)")
_COUNT_LAST = re.compile(r"(?P<name>\S.*?)\s+[xX×*]\s*(?P<count>\d{1,6})")

Accepts = Callable[["Fields"], bool]
Label = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Question:
    """One model, as it is to be served, and the GPUs that it may run on."""

    request: Request
    """Without a device, but for CPUs."""
    devices: tuple[Device, ...] = ()
    """Acceptable ones, the first that fits is taken; empty where none is known."""
    name: str | None = None
    """Of the LLMService."""
    namespace: str | None = None
    missing: tuple[str, ...] = ()
    """Facts of the model that nobody gave."""
    why_missing: str | None = None
    """Why they are not known, where there was an attempt to read them."""
    notes: tuple[str, ...] = ()
    memory_limit_gib: float | None = None
    """Of the container, on CPUs, where the model lies in its memory."""
    allows_long: bool = False
    """Requests that are longer than the model was made for are only noted, not refused."""
    is_manifest: bool = False
    is_of_a_cluster: bool = False
    """`devices` are those of a cluster, and no others are to be had."""
    service: LLMService | None = None
    """Of the manifest, with what options stand for."""
    accepts: Accepts = lambda _: True
    """Whether the manifest would still be a valid one with these fields."""

    @property
    def requests(self) -> tuple[Request, ...]:
        """One for each acceptable GPU; at least one."""
        return tuple(replace(self.request, device=device) for device in self.devices) or (self.request,)


def from_values(values: Values, model: Model, devices: Sequence[Device], label: Label) -> Question:
    """From options alone; `label` is what their user calls them. BadInput where vLLM would refuse the split."""
    request = Request(
        architecture=model.architecture,
        device=None,
        tensors=model.tensors,
        adapters=_adapters(values),
        draft=values.get("speculative_config"),
        **_quantization(values.get("quantization")),
        **{one.name: values[one.name] for one in _OF_REQUEST if one.name in values},
    )
    problems = list(split_problems(request, label))
    if problems:
        raise BadInput(problems)
    return Question(
        request, tuple(devices), missing=model.missing, why_missing=model.why_missing, notes=tuple(notes(request))
    )


def with_values(request: Request, values: Values) -> Request:
    """A manifest's request with the options that the spec has no field for."""
    draft, meant = values.get("speculative_config", request.draft), values.get("quantization")
    if meant is not None and meant.method != meant.field:
        request = replace(request, quantization=meant.method)
    without = [one.name for one in _OF_REQUEST if one.spec is None and one.name in values]
    return replace(request, draft=draft, **{name: values[name] for name in without})


def split_problems(request: Request, label: Label) -> Iterator[Problem]:
    """What vLLM refuses before it loads anything: ranks that cannot share the heads, more stages than layers."""
    model, ranks, stages = request.architecture, request.tensor_parallel_size, request.pipeline_parallel_size
    if model is None:
        return
    if not splits.shares_heads(model, ranks):
        shown = f"{model.num_attention_heads} attention heads and {model.num_key_value_heads} key/value heads"
        fitting = splits.sizes(request)
        yield Problem(
            label("tensor_parallel_size"),
            f"{ranks} ranks cannot share {shown} evenly.",
            f"Use one of {', '.join(map(str, fitting))}.",
        )
    if stages > len(model.layers):
        message = f"{stages} stages cannot share {len(model.layers)} layers."
        yield Problem(label("pipeline_parallel_size"), message, f"Use at most {len(model.layers)}.")


_TAKEN_AS = {"compressed-tensors": "8 bit", "torchao": "8 bit", "quark": "8 bit", "gguf": "4.5 bit"}
"""Methods that store what a checkpoint says, and what is planned with where none does."""

_OF_PLUGINS = ("bitsandbytes", "gguf", "ptpc_fp8")
"""Methods that some versions of vLLM have only by a plugin."""


def notes(request: Request) -> Iterator[str]:
    """What is not known, and taken as it mostly is."""
    own = request.architecture.quantization if request.architecture is not None else None
    bits = _TAKEN_AS.get(request.quantization or "")
    if bits is not None and own is None and request.weights == "auto" and request.weights_gib is None:
        yield f"the configuration does not say how {request.quantization} holds the weights: they are taken as {bits}"

    method, asked = request.quantization, version_of(request)
    if method in _OF_PLUGINS and method not in words(asked, "quantizations"):
        yield f"vLLM {asked} has no {method} of its own: it needs a plugin, or an older version"


def version_of(request: Request) -> str:
    """The version of vLLM that a request is planned for, as MAJOR.MINOR."""
    return series(request.vllm_version or default_version()) or DEFAULT


def exceeded_length(request: Request) -> int | None:
    """The longest request that the model was made for, in tokens, where a longer one is asked for."""
    longest = request.architecture.max_position_embeddings if request.architecture is not None else None
    asked = request.max_model_len
    return longest if isinstance(asked, int) and longest is not None and asked > longest else None


def long_note(request: Request) -> Iterator[str]:
    """What the memory allows and vLLM does not."""
    if longest := exceeded_length(request):
        yield (
            f"the model was made for {longest:,} tokens: vLLM refuses {request.max_model_len:,} unless its positions "
            "are rescaled (spec.contextExtension)"
        )


def counted(raw: object) -> tuple[int | None, str]:
    """A GPU's name without how many there are: `2 x NVIDIA L4`, `8xH100`, `L4 x2`. NotGiven for `unknown`."""
    if is_not_given(raw):
        raise NotGiven
    name = text(raw)
    found = _COUNT_FIRST.fullmatch(name) or _COUNT_LAST.fullmatch(name)
    if found is None:
        return None, name
    number = int(found["count"])
    if not 1 <= number <= MOST_GPUS:
        raise Refused(f"{shown(name)} is no number of GPUs.", "Write one such as 2 x NVIDIA-L4.")
    return number, found["name"]


def device(name: str | None, memory_gib: float | None) -> Device | None:
    """The GPU of a name, of a memory size, or of both; None where neither is given. Refused for a name nobody knows."""
    if name is None:
        return None if memory_gib is None else Device(f"a GPU of {memory_gib:g} GiB", memory_gib)
    if name.lower() == CPU:
        if memory_gib is None:
            raise Refused("cpu needs the GiB of its KV cache (VLLM_CPU_KVCACHE_SPACE).", "Add --gpu-memory-gib 4.")
        return Device(CPU, memory_gib, is_cpu=True)
    found = gpus.device(name, memory_gib)
    if found is None and (meant := gpus.labels(name)):
        raise Refused(
            f"{shown(name)} may be one of several: {', '.join(map(_with_memory, meant))}.",
            "Write one of them, or add the memory that its driver reports (--gpu-memory-gib).",
        )
    if found is None:
        raise Refused(
            f"{shown(name)} is no GPU of the catalogue.",
            f"Write a node's nvidia.com/gpu.product{_near(name)}, or add the memory that its driver reports "
            "(--gpu-memory-gib).",
        )
    return replace(found, name=gpus.label(name, memory_gib) or name)


def taken_as(name: str, device: Device) -> Iterator[str]:
    """A note where a name is taken for a label, and where a label is that of several cards."""
    if device.name not in (name, CPU) and device.name in gpus.CATALOGUE:
        yield f"--gpu {shown(name)} is taken as {device.name}"
    sizes = gpus.sizes(device.name)
    if len(sizes) > 1 and device.memory_gib in sizes:
        others = ", ".join(f"{size:g}" for size in sizes if size != device.memory_gib)
        yield (
            f"{device.name} is planned with {device.memory_gib:g} GiB; cards with {others} GiB have the same label "
            "(--gpu-memory-gib)"
        )


def _with_memory(product: str) -> str:
    gpu = gpus.find(product)
    return product if gpu is None else f"{product} ({gpu.memory_gib:g} GiB)"


def _near(name: str) -> str:
    plain = {_bare(product): product for product in gpus.CATALOGUE}
    near = [plain[one] for one in get_close_matches(_bare(name), plain, n=3, cutoff=0.5)]
    return f" such as {', '.join(near or ['NVIDIA-L4', 'NVIDIA-H100-80GB-HBM3'])}"


def _bare(name: str) -> str:
    """A name without what all of its vendor's begin and end with."""
    word = re.sub(r"[\s_-]+", "-", name.lower())
    return re.sub(r"^((nvidia|amd|geforce|instinct|tesla)-)+|-oam$", "", word)


def _adapters(values: Values) -> Adapters | None:
    most, rank = values.get("max_loras"), values.get("max_lora_rank")
    if values.get("enable_lora") is False or not (values.get("enable_lora") or most or rank):
        return None
    given = {"max_loras": most, "max_lora_rank": rank}
    return Adapters(**{name: value for name, value in given.items() if value is not None})


def _quantization(meant: Quantized | None) -> Mapping[str, Any]:
    return {} if meant is None else {"quantization": meant.method, "weights": meant.weights}


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a command line, each of them valid."""

    values: Values
    devices: tuple[Device, ...] = ()
    """Those that --gpu names."""
    config: str | None = None
    """A path, a folder or `-`."""
    notes: tuple[str, ...] = ()
    model: str | None = None
    """hf://..., s3://..., gs://..., az://... or a folder."""


def given(options: Options) -> Given:
    """The command line; BadInput names every option that is wrong."""
    reading = read_options(options)
    model = None if options.model is None else meant(options.model, reading.notes)
    if options.config is not None and options.model is not None:
        reading.problems.append(
            Problem("--model", "--config already says which model it is.", "Leave one of them out.")
        )
    if [options.file, options.config, options.batch].count("-") > 1:
        reading.problems.append(Problem("-", "standard input can be read once only.", "Name a file for the other."))
    if options.offline and model is not None and model.startswith(REMOTE):
        message = f"{model} is not read with --offline."
        reading.problems.append(Problem("--model", message, "Give its config.json with --config, or a folder."))
    devices = _devices(gpu_names(options.gpu or ()), reading, is_manifest=options.file is not None)
    if reading.problems:
        raise BadInput(reading.problems)
    return Given(reading.found, devices, options.config, tuple(reading.notes), model)


def gpu_names(given: Sequence[str]) -> list[str]:
    """`L4,L40S` is two of them: no label's value has a comma."""
    return [name.strip() for one in given for name in one.split(",")]


def _devices(names: Sequence[str], reading: Reading, *, is_manifest: bool) -> tuple[Device, ...]:
    memory = reading.found.get("gpu_memory_gib")
    found = []
    numbers = set()
    for raw in names:
        try:
            number, name = counted(raw)
            numbers.add(number)
            one = device(name, memory)
            reading.notes += () if one is None else taken_as(name, one)
            found.append(one)
        except Refused as refused:
            reading.problems.append(Problem("--gpu", refused.message, refused.remedy))
        except NotGiven:
            reading.notes.append(f"--gpu {shown(raw)} is taken as not given")
    gpus = numbers.pop() if len(numbers) == 1 else None
    if numbers:
        reading.notes.append("the GPUs are named with different numbers, which are left out: give -tp")
    elif gpus is not None and is_manifest:
        reading.notes.append(f"the manifest, not --gpu, says how many GPUs there are: {gpus} is left out")
    elif gpus is not None:
        share_out(gpus, "--gpu", reading)
    return tuple(one for one in found if one is not None)
