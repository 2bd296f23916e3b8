"""What can be known before anything runs: the model's config.json, and the cluster's GPUs and what is free of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.decide.fit.planning import demand
from llmservice_operator.planner.cluster import Offer, offers

from llmservice_cli.cluster import connect
from llmservice_cli.errors import BadInput, CliError, ExitCode
from llmservice_cli.plan.in_cluster import Reader, Seen
from llmservice_cli.plan.models import REMOTE, Model, NotReached, from_uri
from llmservice_cli.plan.values import Refused

from .arguments import Options

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
