"""What is asked. Options are patches of an LLMService: of each in a file, or of one that says nothing yet.

A question is the patched service, judged by the operator's own models and checks, with the planner's request for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmservice_api.constants import API_VERSION, KIND
from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_operator.manifests.server import (
    accelerator_resource,
    effective_cpu_kv_cache_gib,
    vllm_arguments,
    vllm_version,
)
from llmservice_operator.manifests.settings import Settings
from llmservice_planner import gpus, splits
from llmservice_planner.changes import Fields
from llmservice_planner.checks import Combination, check, verdicts
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import Adapters, Device, Request
from llmservice_planner.quantity import gibibytes
from llmservice_planner.requests import request_of
from llmservice_planner.room import profile_of
from llmservice_vllm.versions import DEFAULT, default_version, series, words

from llmservice_cli.errors import BadInput, print_problems
from llmservice_cli.models import REMOTE, Model, Sources, meant, named
from llmservice_cli.plan import (
    OPTIONS,
    Options,
    Values,
    label,
)

from .values import Quantized, ValueReader, counted, device, gpu_names, share_out, taken_as

Json = Mapping[str, Any]
Label = Callable[[str], str]

ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""The variable with which vLLM takes requests that are longer than the model was made for."""
NAMELESS: Json = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "planned", "namespace": "planned"},
    "spec": {"model": {"uri": "hf://planned/model"}},
}
"""An LLMService that nobody wrote: options say what it is."""
# An installation may have images of its own for these; that is not what a plan is about.
_SETTINGS = Settings(default_amd_image="the-installation's", default_cpu_image="the-installation's")
_OF_REQUEST = tuple(name for name in OPTIONS if name in Request.__dataclass_fields__ and name != "quantization")
"""Options that are a field of the request; quantization is two there."""


@dataclass(frozen=True, slots=True)
class Given:
    """Options, each of them valid by itself."""

    values: Values = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    """Those that --gpu names."""
    model: Model | None = None
    """That of --config or --model."""
    notes: tuple[str, ...] = ()
    label: Label = label
    """What their user calls them."""


@dataclass(frozen=True, slots=True)
class Question:
    """One model, as it is to be served, and the GPUs that it may run on."""

    request: Request
    """Without a device, but for CPUs."""
    service: LLMService
    """With what options stand for."""
    devices: tuple[Device, ...] = ()
    """Acceptable ones, the first that fits is taken; empty where none is known."""
    given: Given = field(default_factory=Given)
    manifest: Json | None = None
    """That of the service, where it is one of a file."""
    missing: tuple[str, ...] = ()
    """Facts of the model that nobody gave."""
    why_missing: str | None = None
    """Why they are not known, where there was an attempt to read them."""
    notes: tuple[str, ...] = ()
    allows_long: bool = False
    """Requests that are longer than the model was made for are only noted, not refused."""
    is_of_a_cluster: bool = False
    """`devices` are those of a cluster, and no others are to be had."""

    @property
    def requests(self) -> tuple[Request, ...]:
        """One for each acceptable GPU; at least one."""
        return tuple(replace(self.request, device=device) for device in self.devices) or (self.request,)

    @property
    def is_manifest(self) -> bool:
        """Whether it is about an LLMService of a file."""
        return self.manifest is not None

    @property
    def name(self) -> str | None:
        """Of an LLMService of a file."""
        return None if self.manifest is None else self.service.name

    @property
    def namespace(self) -> str | None:
        """As the file has it."""
        return None if self.manifest is None else self.manifest["metadata"].get("namespace")

    def accepts(self, fields: Fields) -> bool:
        """Whether the manifest would still be a valid one with these fields; True of options alone."""
        if self.manifest is None:
            return True
        from llmservice_cli.admission.check import problems

        changed = patched(self.manifest, {})
        for path, value in fields:
            write(changed, path, value)
        if set(problems(changed)) - set(problems(self.manifest)):
            return False
        try:
            _judge(_service(changed, self.given.devices))
        except InvalidSpec:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions, and the problems of LLMServices that cannot be planned for."""

    questions: Sequence[Question]
    problems: Sequence[Problem] = ()
    is_list: bool = False
    """Of several LLMServices, even where one is left."""


def given(options: Options) -> Given:
    """The command line; BadInput names every option that is wrong."""
    reading = ValueReader()
    for one in OPTIONS.values():
        reading.take(one.name, one.flag, one.read, getattr(options, one.name))
    uri = None if options.model is None else meant(options.model, reading.notes)
    if options.config is not None and uri is not None:
        reading.problems.append(
            Problem("--model", "--config already says which model it is.", "Leave one of them out.")
        )
    if [options.file, options.config, options.batch].count("-") > 1:
        reading.problems.append(Problem("-", "standard input can be read once only.", "Name a file for the other."))
    if options.offline and uri is not None and uri.startswith(REMOTE):
        message = f"{uri} is not read with --offline."
        reading.problems.append(Problem("--model", message, "Give its config.json with --config, or a folder."))
    devices = _named_devices(gpu_names(options.gpu or ()), reading, is_manifest=options.file is not None)
    if reading.problems:
        raise BadInput(reading.problems)
    return Given(reading.found, devices, named(options.config, uri), tuple(reading.notes))


def _named_devices(names: Sequence[str], reading: ValueReader, *, is_manifest: bool) -> tuple[Device, ...]:
    memory = reading.found.get("gpu_memory_gib")
    found: list[Device] = []
    numbers = set()
    for raw in names:
        reading.take("gpu", "--gpu", counted, raw)
        number, name = reading.found.pop("gpu", (None, None))
        reading.take("device", "--gpu", lambda name: device(name, memory), name)
        if name is not None:
            numbers.add(number)
        if (one := reading.found.pop("device", None)) is not None:
            reading.notes += taken_as(name, one)
            found.append(one)
    gpus = numbers.pop() if len(numbers) == 1 else None
    if numbers:
        reading.notes.append("the GPUs are named with different numbers, which are left out: give -tp")
    elif gpus is not None and is_manifest:
        reading.notes.append(f"the manifest, not --gpu, says how many GPUs there are: {gpus} is left out")
    elif gpus is not None:
        share_out(gpus, "--gpu", reading)
    return tuple(found)


def of_file(place: str, given: Given, sources: Sources) -> Asked:
    """Every LLMService of a file (`-`: stdin). BadInput for a file that is none, or has none."""
    from llmservice_cli.manifests import services

    found = services(place)
    questions: list[Question] = []
    problems: list[Problem] = []
    for each in found.services:
        with each.collecting(problems):
            questions.append(of_manifest(each.manifest, given, sources))
    print_problems((), found.notes)
    return Asked(questions, problems, is_list=len(found.services) > 1)


def of_manifest(manifest: Json, given: Given, sources: Sources) -> Question:
    """Of one LLMService; InvalidSpec or BadInput where it would be refused with the options in it."""
    from llmservice_cli.manifests import admit

    admit(manifest)
    changed = admitted(manifest, given.values)
    service = _service(changed, given.devices)
    left_out = () if given.devices else tuple(_nicknames(service.spec))
    _judge(service, given.devices)
    model, remarks = sources.model_of(service, given.model)
    remarks = (*left_out, *_overrides(manifest, given.values), *remarks)
    given = replace(given, label=lambda name: f"{service.name}: spec.{OPTIONS[name].spec}")
    draft = sources.draft_of(service)
    return replace(_question(service, given, model, _devices(service, given), remarks, draft), manifest=changed)


def of_options(given: Given) -> Question:
    """Of options alone; BadInput where vLLM would refuse the split. A value that the spec does not take is planned all
    the same: other programs than the operator start vLLM, too."""
    try:
        service = _service(patched(NAMELESS, given.values), given.devices)
    except InvalidSpec as invalid:
        refused = {problem.field for problem in invalid.problems}
        taken = {name: value for name, value in given.values.items() if f"spec.{OPTIONS[name].spec}" not in refused}
        service = _service(patched(NAMELESS, taken), given.devices)
    nameless = device(None, given.values.get("gpu_memory_gib"))
    devices = given.devices or (() if nameless is None else (nameless,))
    return _question(service, given, given.model or Model(), devices)


def for_a_cluster(question: Question) -> Question:
    """The same of options alone, which the API server would take; BadInput where it would not."""
    try:
        changed = admitted(NAMELESS, question.given.values)
    except InvalidSpec as invalid:
        raise BadInput(invalid.problems) from None
    return replace(question, service=_service(changed, question.given.devices))


def _question(
    service: LLMService,
    given: Given,
    model: Model,
    devices: tuple[Device, ...],
    remarks: Sequence[str] = (),
    draft: Architecture | None = None,
) -> Question:
    """BadInput where the model cannot be split so."""
    spec = service.spec
    kv_cache_gib = effective_cpu_kv_cache_gib(service, _SETTINGS)
    if spec.accelerator.type == "cpu" and given.devices:
        kv_cache_gib = max(1, int(given.devices[0].memory_gib))
    request = request_of(
        spec,
        architecture=model.architecture,
        tensors=model.tensors,
        device=None,
        vllm_version=vllm_version(service, _SETTINGS),
        cpu_kv_cache_gib=kv_cache_gib,
        draft=draft,
    )
    request = _with_values(request, given.values)
    problems = list(split_problems(request, given.label))
    if problems:
        raise BadInput(problems)
    return Question(
        request,
        service,
        devices,
        given,
        missing=model.missing,
        why_missing=model.why_missing,
        notes=(*given.notes, *remarks, *_assumptions(request)),
        allows_long=(ALLOW_LONG, "1") in ((one.get("name"), one.get("value")) for one in spec.runtime.env or ()),
    )


def _with_values(request: Request, values: Values) -> Request:
    """With the options for which the spec has no field or no word."""
    found = {name: values[name] for name in _OF_REQUEST if name in values}
    quantized: Quantized = values.get("quantization", Quantized(None))
    if quantized.method is not None:
        found["quantization"] = quantized.method
    if quantized.weights != "auto":
        found["weights"] = quantized.weights
    adapters = _adapters(request.adapters, values)
    return replace(request, draft=values.get("speculative_config", request.draft), adapters=adapters, **found)


def _adapters(stated: Adapters | None, values: Values) -> Adapters | None:
    if values.get("enable_lora") is False:
        return None
    most = {name: values[name] for name in ("max_loras", "max_lora_rank") if name in values}
    return replace(stated or Adapters(), **most) if most or values.get("enable_lora") else stated


def admitted(manifest: Json, values: Values) -> dict[str, Any]:
    """The manifest with options in it; InvalidSpec, about the option, for a value that the spec does not take."""
    from llmservice_cli.manifests import admit

    changed = patched(manifest, values)
    flags = {f"spec.{OPTIONS[name].spec}": OPTIONS[name].flag for name in values if OPTIONS[name].spec}
    try:
        admit(changed)
    except InvalidSpec as invalid:
        raise InvalidSpec(
            replace(problem, field=flags.get(problem.field, problem.field)) for problem in invalid.problems
        ) from None
    return changed


def patched(manifest: Json, values: Values) -> dict[str, Any]:
    """A copy of the manifest with the values that have a field in it written there."""
    result: dict[str, Any] = _copy(manifest)
    for name, value in values.items():
        path = OPTIONS[name].spec
        method = value.field if isinstance(value, Quantized) else value
        if path is not None and method is not None:
            write(result, path, method)
        if isinstance(value, Quantized) and value.weights != "auto":
            write(result, "precision.weights", value.weights)
    return result


def write(manifest: dict[str, Any], path: str, value: Any) -> None:
    """Set a field, by its dotted path under spec, in place."""
    node, (*parents, last) = manifest, ("spec", *path.split("."))
    for name in parents:
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            return  # no object: the manifest's models refuse it
    node[last] = list(value) if isinstance(value, tuple) else value


def _copy(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _copy(value) for key, value in node.items()}
    return [_copy(value) for value in node] if isinstance(node, list) else node


def _service(manifest: Json, named: Sequence[Device]) -> LLMService:
    """With what an API server adds before the operator reads it; a GPU that is named stands for the manifest's own."""
    if (found := manifest.get("apiVersion")) != API_VERSION:
        raise InvalidSpec([Problem("apiVersion", f"{found} is none that this version knows.", f"Write {API_VERSION}.")])
    whole = patched(manifest, {})
    if named:
        write(whole, "accelerator.products", None)
        write(whole, "accelerator.type", named[0].accelerator)
        if named[0].is_cpu:
            write(whole, "accelerator.memory", f"{max(1, int(named[0].memory_gib))}Gi")
    return LLMService.from_object({**whole, "metadata": {"namespace": "default", **whole["metadata"]}})


def _nicknames(spec: LLMServiceSpec) -> Iterator[str]:
    """Notes on products that are no value of a node label, as the operator leaves them out; none may be left over."""
    products = spec.accelerator.products or ()
    problems = []
    for index, product in enumerate(products):
        if labels := gpus.labels(product):
            message = f"{product} is no value of the node label that names GPUs."
            remedy = f"Write {', '.join(labels)}; for a label of your own plan with --gpu."
            problems.append(Problem(f"spec.accelerator.products[{index}]", message, remedy))
    if problems and len(problems) == len(products):
        raise InvalidSpec(problems)
    for problem in problems:
        yield f"{problem.field} is left out: {problem.message} {problem.remedy}"


def _judge(service: LLMService, named: Sequence[Device] = ()) -> None:
    """What the operator would refuse before it plans; on GPUs that were named beside the manifest, too."""
    image, version = service.spec.runtime.image or _SETTINGS.default_gpu_image, vllm_version(service, _SETTINGS)
    arguments = vllm_arguments(service, version)
    problems = list(check(service.spec, image=image, vllm_version=version, arguments=arguments))
    for one in named:
        if one.capability is not None:
            combination = Combination.from_spec(service.spec)
            capability = {"capability": f"{one.capability[0]}.{one.capability[1]}"}
            on_device = replace(combination, values={**combination.values, **capability}, product=one.name)
            problems += [problem for problem in verdicts(on_device) if problem not in problems]
    if problems:
        raise InvalidSpec(problems)


def _devices(service: LLMService, given: Given) -> tuple[Device, ...]:
    """Acceptable GPUs in order of preference: those beside the manifest, else its own; on CPUs none."""
    accelerator = service.spec.accelerator
    if accelerator.type == "cpu" or given.devices:
        return () if accelerator.type == "cpu" else given.devices
    stated = given.values.get("gpu_memory_gib") or (gibibytes(accelerator.memory) if accelerator.memory else None)
    profile = profile_of(accelerator_resource(service) or "")
    if profile is not None:
        stated = stated or gpus.slice_gib(profile)
    found = []
    for product in accelerator.products or ():
        name = product if profile is None else gpus.slice_of(product, profile)
        known = None if gpus.labels(product) else gpus.device(name, stated)
        if known is not None:
            found.append(replace(known, name=name, is_amd=accelerator.type == "amd"))
    if not found and stated is not None:
        name = f"a GPU of {stated:g} GiB" if profile is None else gpus.any_slice(stated)
        found.append(Device(name, stated, is_amd=accelerator.type == "amd"))
    return tuple(found)


def _overrides(manifest: Json, values: Values) -> Iterator[str]:
    """Which of the manifest's values an option stands for."""
    for name in values:
        path = OPTIONS[name].spec
        stated: Any = manifest.get("spec")
        for part in path.split(".") if path else ():
            stated = stated.get(part) if isinstance(stated, Mapping) else None
        if path and stated is not None:
            yield f"{OPTIONS[name].flag} instead of spec.{path}: {stated}"


def split_problems(request: Request, label: Label) -> Iterator[Problem]:
    """What vLLM refuses before it loads anything: ranks that cannot share the heads, more stages than layers."""
    model, ranks, stages = request.architecture, request.tensor_parallel_size, request.pipeline_parallel_size
    if model is None:
        return
    if not splits.shares_heads(model, ranks):
        heads = f"{model.num_attention_heads} attention heads and {model.num_key_value_heads} key/value heads"
        yield Problem(
            label("tensor_parallel_size"),
            f"{ranks} ranks cannot share {heads} evenly.",
            f"Use one of {', '.join(map(str, splits.sizes(request)))}.",
        )
    if stages > len(model.layers):
        message = f"{stages} stages cannot share {len(model.layers)} layers."
        yield Problem(label("pipeline_parallel_size"), message, f"Use at most {len(model.layers)}.")


_TAKEN_AS = {"compressed-tensors": "8 bit", "torchao": "8 bit", "quark": "8 bit", "gguf": "4.5 bit"}
"""Methods that store what a checkpoint says, and what is planned with where none does."""

_OF_PLUGINS = ("bitsandbytes", "gguf", "ptpc_fp8")
"""Methods that some versions of vLLM have only by a plugin."""


def _assumptions(request: Request) -> Iterator[str]:
    """Notes on what is not known, and taken as it mostly is."""
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
