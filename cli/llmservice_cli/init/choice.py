"""What is chosen where nobody says it: the smallest GPU that fits, how many of them, and the longest request.

The rule: the fewest GPUs a replica with which the model fits; of those the product with the least memory that takes the
model's own length; else the product with the least memory that takes USEFUL_LENGTH, with the longest request that fits
for sure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from llmservice_api.service import LLMService
from llmservice_operator.behaviours.fit.planning import demand
from llmservice_planner import splits
from llmservice_planner.cluster import Offer, offers
from llmservice_planner.plan import Fit, Request

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.errors import BadInput, CliError, ExitCode, Refused
from llmservice_cli.init import Options
from llmservice_cli.models import REMOTE, Model, NotReached, Sources, from_uri
from llmservice_cli.plan.answers import Answer, answer
from llmservice_cli.plan.cluster import Reader, Seen, answered
from llmservice_cli.plan.questions import Given, of_manifest, patched

USEFUL_LENGTH = 8192
"""Tokens: a shorter limit is no choice for a chat."""
STEP = 1024
"""Lengths are multiples of it."""
GPUS = (1, 2, 4, 8)
"""Of one replica."""
_LENGTH, _RANKS = "max_model_len", "tensor_parallel_size"


@dataclass(frozen=True)
class Choice:
    """The manifest with what was chosen, and why, by the fields' paths under spec."""

    manifest: Json
    answer: Answer | None = None
    """None: nothing was known to plan with."""
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        """Whether it is known that it does not fit."""
        return self.answer is not None and self.answer.plan.verdict is Fit.DOES_NOT_FIT


def choose(manifest: Json, world: World) -> Choice:
    """The manifest as it is where the model is not known, or no GPU to plan for."""
    accelerator = manifest["spec"].get("accelerator") or {}
    is_cpu = accelerator.get("type") == "cpu"
    if world.model is None or not (is_cpu or accelerator.get("products") or world.gpus):
        return Choice(manifest)
    if is_cpu:
        return _on_cpus(manifest, world)
    if "products" not in accelerator and world.kind == "amd":
        manifest = _with(manifest, accelerator={**accelerator, "type": "amd"})
    return _on_gpus(manifest, world)


def _on_cpus(manifest: Json, world: World) -> Choice:
    """The KV cache that is configured there is small, so that any length is useful."""
    found = _planned(manifest, world)
    shorter = _shorter(manifest, world, found, STEP) if found.plan.verdict is not Fit.FITS else None
    return shorter or Choice(manifest, found)


def _on_gpus(manifest: Json, world: World) -> Choice:
    first: Answer | None = None
    tight: Choice | None = None
    for ranks in _ranks(world):
        asked = patched(manifest, {_RANKS: ranks}) if ranks > 1 else manifest
        found = _planned(asked, world)
        first = first or found
        if found.plan.verdict is Fit.FITS:
            return _chosen(asked, found, world)
        if (shorter := _shorter(asked, world, found, USEFUL_LENGTH)) is not None:
            return shorter
        if found.plan.verdict is Fit.TIGHT:
            tight = tight or _chosen(asked, found, world)
    return tight or Choice(manifest, first)


def _shorter(manifest: Json, world: World, whole: Answer, least: int) -> Choice | None:
    """With the longest request that fits for sure where one of `least` tokens does; None where a length is given."""
    own = whole.plan.requested_max_model_len
    if "maxModelLen" in (manifest["spec"].get("batching") or {}) or own is None or own <= least:
        return None
    useful = _planned(patched(manifest, {_LENGTH: least}), world)
    most = useful.plan.max_model_len
    if useful.plan.verdict is not Fit.FITS or most is None or useful.plan.gpu is None:
        return None
    bound, length = _bound(manifest, useful), max(least, min(most, own) // STEP * STEP)
    asked = patched(bound, {_LENGTH: length})
    found = _planned(asked, world)
    if found.plan.verdict is not Fit.FITS:
        asked, found = patched(bound, {_LENGTH: least}), useful
    chosen = _chosen(asked, found, world)
    said = f"The model takes requests of {own:,} tokens, which do not fit; {most:,} fit for sure."
    return replace(chosen, reasons=chosen.reasons | {"batching.maxModelLen": said})


def _chosen(manifest: Json, found: Answer, world: World) -> Choice:
    bound = _bound(manifest, found)
    found = found if bound is manifest else _planned(bound, world)  # on that product there is less room
    plan, reasons = found.plan, {}
    room = found.placement and found.placement.replicas
    reasons["accelerator.products"] = plan.reason
    if room is not None:
        reasons["accelerator.products"] += (
            f" The cluster has room for {room or 'no'} such replica{'' if room == 1 else 's'} now."
        )
    if plan.gpus > 1 and plan.weights_total_gib is not None and plan.memory_gib is not None:
        reasons["parallelism.tensorParallelSize"] = (
            f"GPUs of one replica, all on one node: the weights take {plan.weights_total_gib:.1f} GiB in all, and one "
            f"GPU has {plan.memory_gib:.1f} GiB."
        )
    return Choice(bound, found, reasons)


def _bound(manifest: Json, found: Answer) -> Json:
    """With the product that was planned for, where none is named."""
    accelerator = manifest["spec"].get("accelerator") or {}
    if accelerator.get("products") or accelerator.get("type") == "cpu" or found.plan.gpu is None:
        return manifest
    return _with(manifest, accelerator={**accelerator, "products": [found.plan.gpu]})


def _with(manifest: Json, **spec: Any) -> Json:
    return {**manifest, "spec": {**manifest["spec"], **spec}}


def _planned(manifest: Json, world: World) -> Answer:
    question = of_manifest(manifest, Given(model=world.model), Sources(is_offline=True))
    seen = world.seen.get(question.service.spec.accelerator.type)
    return answer(question) if seen is None else answered(question, seen)


def _ranks(world: World) -> Iterator[int]:
    """Numbers of GPUs that can share the model; whether a node has as many, `pick` knows."""
    model = world.model.architecture if world.model is not None else None
    able = splits.sizes(Request(model, None))
    yield from (ranks for ranks in GPUS if ranks == 1 or ranks in able)


PATIENCE_SECONDS = 15.0
"""For an API server that does not answer."""


@dataclass(frozen=True)
class World:
    """`seen` by the type of accelerator."""

    model: Model | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Offer, ...]:
        """Products of the cluster, the smallest first."""
        kind = self.kind
        return () if kind is None else _offers(self.seen[kind], kind)

    @property
    def kind(self) -> str | None:
        """Of the cluster's GPUs."""
        return next((kind for kind in ("nvidia", "amd") if kind in self.seen and _offers(self.seen[kind], kind)), None)

    @property
    def products(self) -> tuple[str, ...]:
        return tuple(offer.product for offer in self.gpus if offer.product is not None)


async def look(options: Options, uri: str) -> World:
    """Everything that is to be had; what is not is a note. CliError where a cluster that was named does not answer."""
    if options.offline:
        return World()
    model, notes = _model(uri)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            seen = await _seen(options)
    except TimeoutError:
        seen, why = {}, f"it did not answer within {PATIENCE_SECONDS:g} s"
    except CliError as error:
        if options.context is not None or options.kubeconfig is not None:
            error.exit_code = ExitCode.NOT_ASKED  # 1 would say that it does not fit
            raise
        seen, why = {}, error.message
    else:
        return World(model, seen, notes)
    return World(model, seen, (*notes, f"the cluster is not looked at: {why}"))


def _model(uri: str) -> tuple[Model | None, tuple[str, ...]]:
    if not uri.startswith(REMOTE):
        return None, ()
    try:
        found = from_uri(uri)
    except NotReached as unreached:
        return None, (f"the model's configuration is not read: {unreached.failure.message}",)
    except Refused as refused:
        return None, (f"the model's configuration is not read: {refused.message}",)
    except BadInput as bad:
        return None, tuple(f"the model's configuration is not read: {problem}" for problem in bad.problems)
    if found.architecture is None:
        return None, (found.why_missing or f"the model's configuration does not say: {', '.join(found.missing)}",)
    return found, ()


async def _seen(options: Options) -> dict[str, Seen]:
    """Of AMD's GPUs only where there are none of NVIDIA's."""
    async with connect(options) as connection:
        reader, namespace = Reader(connection.kube), options.namespace or connection.namespace
        found = {}
        for kind in ("nvidia", "amd"):
            found[kind] = await reader.seen(_service(kind), namespace)
            if _offers(found[kind], kind):
                break
        found["cpu"] = await reader.seen(_service("cpu"), namespace)
        return found


def _offers(seen: Seen, kind: str) -> tuple[Offer, ...]:
    return offers(seen.gpus, demand(_service(kind)).tolerations)


def _service(kind: str) -> LLMService:
    """With nothing but the accelerator."""
    spec: dict[str, Any] = {"model": {"uri": "hf://planned/model"}, "accelerator": {"type": kind}}
    return LLMService.from_object({"metadata": {"name": "planned", "namespace": "planned"}, "spec": spec})


def shown(offered: Iterable[Offer]) -> list[str]:
    """Each product with its memory and what one node has."""
    return [
        f"{offer.product or 'unnamed'} ({offer.device.memory_gib:g} GiB, {offer.per_node} a node)"
        for offer in offered
        if offer.device is not None
    ]
