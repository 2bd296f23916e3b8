"""The LLMService that options describe, with nothing in it that is a default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmservice_operator.api.constants import API_VERSION, KIND
from llmservice_operator.api.errors import Problem

from llmservice_cli.api import Json
from llmservice_cli.errors import BadInput, WrongUsage
from llmservice_cli.plan import values
from llmservice_cli.plan.models import meant
from llmservice_cli.plan.options import overridden
from llmservice_cli.plan.quantizations import quantized
from llmservice_cli.plan.questions import device
from llmservice_cli.plan.values import Refused

from .arguments import Options

_READ = {"max_model_len": ("--max-model-len", values.length), "quantization": ("--quantization", quantized)}


def llmservice(options: Options, known: Sequence[str] = ()) -> Json:
    """The manifest; BadInput for values that stand for nothing. `known` are products that the cluster has."""
    assert options.name is not None
    assert options.model is not None
    if options.cpu and options.gpu:
        raise WrongUsage("--cpu and --gpu exclude each other", "leave one of them out")
    if options.replicas is not None and (options.min_replicas, options.max_replicas) != (None, None):
        raise WrongUsage("--replicas is for a fixed number", "leave out --min-replicas and --max-replicas, or it")
    spec: dict[str, Any] = {"model": _model(options), **_accelerator(options, known)}
    scaling = _scaling(options)
    if scaling:
        spec["scaling"] = scaling
    if options.api_key_secret:
        spec["endpoint"] = {"apiKeySecretRef": _key(options.api_key_secret)}
    metadata = {"name": options.name, **namespace(options)}
    made: Json = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    return overridden(made, _values(options))


def namespace(options: Options) -> dict[str, str]:
    return {"namespace": options.namespace} if options.namespace else {}


def _model(options: Options) -> Json:
    model: Json = {"uri": meant(options.model or "", [])}
    if options.hf_token_secret:
        model["hfTokenSecretRef"] = _key(options.hf_token_secret)
    if options.cache_size is not None:
        model["cache"] = {"size": options.cache_size}
    return model


def _accelerator(options: Options, known: Sequence[str]) -> Json:
    if options.cpu:
        return {"accelerator": {"type": "cpu"}}
    names = [name.strip() for one in options.gpu or () for name in one.split(",")]
    if not names:
        return {}
    products, kinds = [], set()
    for name in names:
        if name in known:
            products.append(name)
            continue
        try:
            found = device(name, None)
        except Refused as refused:
            raise BadInput.of("--gpu", refused.message, refused.remedy) from None
        assert found is not None
        products.append(found.name)
        kinds.add(found.accelerator)
    if len(kinds) > 1:
        raise BadInput.of("--gpu", "they are of several vendors.", "Name those of one.")
    return {"accelerator": {**({"type": "amd"} if kinds == {"amd"} else {}), "products": products}}


def _scaling(options: Options) -> Json:
    fewest, most = options.min_replicas, options.max_replicas
    if fewest is None and most is None:
        return {} if options.replicas is None else {"replicas": options.replicas}
    bounds = {} if fewest is None else {"minReplicas": fewest}
    return {"autoscaling": {**bounds, "maxReplicas": max(fewest or 0, 1) if most is None else most}}


def _values(options: Options) -> dict[str, Any]:
    found, problems = {}, []
    for name, (flag, read) in _READ.items():
        raw = getattr(options, name)
        try:
            if raw is not None:
                found[name] = read(raw)
        except Refused as refused:
            problems.append(Problem(flag, refused.message, refused.remedy))
    if problems:
        raise BadInput(problems)
    return found


def _key(pair: tuple[str, str]) -> dict[str, str]:
    return {"name": pair[0], "key": pair[1]}
