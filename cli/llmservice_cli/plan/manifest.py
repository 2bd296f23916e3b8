"""Questions from manifests: each LLMService of a file, judged by the operator's own models and checks, and where the
facts of its model come from: the spec first, then options, then the hub or the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmservice_api.constants import API_VERSION
from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_operator.manifests.engine import vllm_arguments, vllm_version
from llmservice_operator.manifests.resources import accelerator_resource, effective_cpu_kv_cache_gib
from llmservice_operator.manifests.settings import Settings
from llmservice_planner import gpus
from llmservice_planner.changes import Fields
from llmservice_planner.checks import check
from llmservice_planner.compatibility import Combination, verdicts
from llmservice_planner.model import spec_facts
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import Device
from llmservice_planner.quantity import gibibytes
from llmservice_planner.requests import limit_gib, request_of
from llmservice_planner.room import profile_of

from llmservice_cli.admission.check import problems as refused
from llmservice_cli.errors import BadInput, print_problems
from llmservice_cli.manifests import admit, services

from . import models
from .answers import ALLOW_LONG, Asked
from .models import Model, NotReached
from .options import OPTIONS, Values, overridden, write
from .questions import Given, Question, notes, split_problems, with_values
from .values import shown

# An installation may have images of its own for these; that is not what a plan is about.
_SETTINGS = Settings(default_amd_image="the-installation's", default_cpu_image="the-installation's")


def ask(place: str, given: Given, named: Model | None, sources: Sources) -> Asked:
    """Every LLMService of a file (`-`: stdin). BadInput for a file that is none, or has none."""
    found = services(place)
    questions: list[Question] = []
    problems: list[Problem] = []
    for each in found.services:
        with each.collecting(problems):
            questions.append(question_of(each.manifest, given, named, sources))
    print_problems((), found.notes)
    return Asked(given, questions, problems, is_list=len(found.services) > 1)


def question_of(manifest: Mapping[str, Any], given: Given, named: Model | None, sources: Sources) -> Question:
    """Of one LLMService; InvalidSpec or BadInput where it would be refused."""
    admit(manifest)
    service = LLMService.from_object(_complete(admitted_with(manifest, given.values), given))
    spec = service.spec
    left_out = () if given.devices else tuple(_nicknames(spec))
    is_cpu = spec.accelerator.type == "cpu"
    devices = () if is_cpu else _devices(service, given)
    _judge(service, devices if given.devices else ())
    model, remarks = sources.model_of(service, named)
    draft = spec.draft_model
    kv_cache_gib = effective_cpu_kv_cache_gib(service, _SETTINGS)
    if is_cpu and given.devices:
        kv_cache_gib = max(1, int(given.devices[0].memory_gib))
    request = request_of(
        spec,
        architecture=model.architecture,
        tensors=model.tensors,
        device=None,
        vllm_version=vllm_version(service, _SETTINGS),
        cpu_kv_cache_gib=kv_cache_gib,
        draft=None if draft is None else sources.architecture_of(draft.uri),
    )
    problems = list(split_problems(request, _field))
    if problems:
        raise BadInput(replace(problem, field=f"{service.name}: {problem.field}") for problem in problems)
    return Question(
        with_values(request, given.values),
        devices,
        name=service.name,
        namespace=manifest["metadata"].get("namespace"),
        missing=model.missing,
        why_missing=model.why_missing,
        notes=(*given.notes, *left_out, *_overrides(manifest, given), *remarks, *notes(request)),
        allows_long=(ALLOW_LONG, "1") in ((one.get("name"), one.get("value")) for one in spec.runtime.env or ()),
        memory_limit_gib=limit_gib(spec),
        is_manifest=True,
        service=service,
        accepts=lambda fields: _is_valid(manifest, given, fields),
    )


def admitted_with(manifest: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The manifest with options in it; InvalidSpec, about the option, for a value that the spec does not take."""
    changed = overridden(manifest, values)
    flags = {f"spec.{OPTIONS[name].spec}": OPTIONS[name].flag for name in values if OPTIONS[name].spec}
    try:
        admit(changed)
    except InvalidSpec as invalid:
        raise InvalidSpec(
            replace(problem, field=flags.get(problem.field, problem.field)) for problem in invalid.problems
        ) from None
    return changed


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


def _field(name: str) -> str:
    return f"spec.{OPTIONS[name].spec}"


def _is_valid(manifest: Mapping[str, Any], given: Given, fields: Fields) -> bool:
    """Whether the API server and the operator would take the manifest with these fields in it."""
    changed = overridden(manifest, given.values)
    before = refused(changed)
    for path, value in fields:
        write(changed, path, value)
    if set(refused(changed)) - set(before):
        return False
    try:
        _judge(LLMService.from_object(_complete(changed, given)), ())
    except InvalidSpec:
        return False
    return True


def _complete(manifest: dict[str, Any], given: Given) -> dict[str, Any]:
    """With what an API server adds before the operator reads it; a GPU that is named stands for the manifest's own."""
    if manifest.get("apiVersion") != API_VERSION:
        found = manifest.get("apiVersion")
        raise InvalidSpec([Problem("apiVersion", f"{found} is none that this version knows.", f"Write {API_VERSION}.")])
    if given.devices:
        _take(given.devices[0], manifest)
    return {**manifest, "metadata": {"namespace": "default", **manifest["metadata"]}}


def _take(device: Device, manifest: dict[str, Any]) -> None:
    """Replace the manifest's accelerator with this device."""
    write(manifest, "accelerator.products", None)
    write(manifest, "accelerator.type", device.accelerator)
    if device.is_cpu:
        write(manifest, "accelerator.memory", f"{max(1, int(device.memory_gib))}Gi")


def _judge(service: LLMService, named: Sequence[Device]) -> None:
    """What the operator would refuse before it plans; on GPUs that were named beside the manifest, too."""
    image, version = service.spec.runtime.image or _SETTINGS.default_gpu_image, vllm_version(service, _SETTINGS)
    arguments = vllm_arguments(service, version)
    problems = list(check(service.spec, image=image, vllm_version=version, arguments=arguments))
    for device in named:
        if device.capability is not None:
            combination = Combination.from_spec(service.spec)
            capability = {"capability": f"{device.capability[0]}.{device.capability[1]}"}
            on_device = replace(combination, values={**combination.values, **capability}, product=device.name)
            problems += [problem for problem in verdicts(on_device) if problem not in problems]
    if problems:
        raise InvalidSpec(problems)


def _devices(service: LLMService, given: Given) -> tuple[Device, ...]:
    """Acceptable GPUs in order of preference: those beside the manifest, else its own."""
    if given.devices:
        return given.devices
    accelerator = service.spec.accelerator
    stated = given.values.get("gpu_memory_gib") or (gibibytes(accelerator.memory) if accelerator.memory else None)
    profile = profile_of(accelerator_resource(service) or "")
    if profile is not None:
        stated = stated or gpus.slice_gib(profile)
    found = []
    for product in accelerator.products or ():
        name = product if profile is None else gpus.slice_of(product, profile)
        device = None if gpus.labels(product) else gpus.device(name, stated)
        if device is not None:
            found.append(replace(device, name=name, is_amd=accelerator.type == "amd"))
    if not found and stated is not None:
        name = f"a GPU of {stated:g} GiB" if profile is None else gpus.any_slice(stated)
        found.append(Device(name, stated, is_amd=accelerator.type == "amd"))
    return tuple(found)


def _overrides(manifest: Mapping[str, Any], given: Given) -> Iterator[str]:
    """Which of the manifest's values an option stands for."""
    for name in given.values:
        path = OPTIONS[name].spec
        stated: Any = manifest.get("spec")
        for part in path.split(".") if path else ():
            stated = stated.get(part) if isinstance(stated, Mapping) else None
        if path and stated is not None:
            yield f"{OPTIONS[name].flag} instead of spec.{path}: {stated}"


GIVE_CONFIG = "Give its config.json with --config."


@dataclass(slots=True)
class Sources:
    """Models that were read: ten services of one model ask the hub once."""

    is_offline: bool = False
    _seen: dict[str, Model | NotReached] = field(default_factory=dict)

    def model_of(self, service: LLMService, named: Model | None) -> tuple[Model, tuple[str, ...]]:
        """Facts for the plan, and notes on them. What cannot be had leaves the plan Unknown, with the reason."""
        stated = spec_facts.from_spec(service.spec.model.architecture)
        if named is not None:
            document = spec_facts.merge(named.document or {}, stated)
            return models.from_document(document, "the model", named.tensors), _disagreements(stated, named)
        alone = models.from_document(stated, "spec.model.architecture")
        if alone.architecture is not None:
            return alone, ()
        uri = service.spec.model.uri
        inspected, why = self._inspected(uri)
        if inspected is None:
            return replace(alone, why_missing=f"{uri} {why}"), ()
        document = spec_facts.merge(inspected.document or {}, stated)
        return models.from_document(document, "spec.model.uri", inspected.tensors), ()

    def architecture_of(self, uri: str) -> Architecture | None:
        """Of a draft model; None where it cannot be had."""
        found, _ = self._inspected(uri, is_draft=True)
        return None if found is None else found.architecture

    def _inspected(self, uri: str, *, is_draft: bool = False) -> tuple[Model | None, str]:
        """A model by its uri, or why it cannot be read from here."""
        if not uri.startswith(models.REMOTE):
            return None, f"is in the cluster and cannot be read from here. {GIVE_CONFIG}"
        if self.is_offline:
            return None, f"is not read with --offline. {GIVE_CONFIG}"
        try:
            return self._read(uri, is_draft=is_draft), ""
        except NotReached as unreached:
            failure = unreached.failure
            return None, f"cannot be read: {failure.message} {failure.remedy}"

    def _read(self, place: str, *, is_draft: bool = False) -> Model:
        if place not in self._seen:
            try:
                self._seen[place] = models.draft_from_uri(place) if is_draft else models.from_uri(place)
            except NotReached as unreached:
                self._seen[place] = unreached
        seen = self._seen[place]
        if isinstance(seen, NotReached):
            raise seen
        return seen


def _disagreements(stated: Mapping[str, Any], named: Model) -> tuple[str, ...]:
    """Facts of the spec that are not the model's."""
    document = named.document or {}
    return tuple(
        f"spec.model.architecture says {key} {shown(value)}, the model's configuration {shown(document[key])}: "
        "the spec's is planned, as the operator does"
        for key, value in stated.items()
        if isinstance(value, int | str) and document.get(key) not in (None, value)
    )
