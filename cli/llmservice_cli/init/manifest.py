"""The LLMService that options describe, and its YAML: with a comment above what was chosen, and with optional fields
commented out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

import yaml
from llmservice_api.constants import API_VERSION, KIND
from llmservice_planner.plan import Fit
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.errors import BadInput, Refused, WrongUsage
from llmservice_cli.models import REMOTE, meant
from llmservice_cli.plan.answers import Answer, plan_of
from llmservice_cli.plan.arguments import OPTIONS
from llmservice_cli.plan.compare import refusal
from llmservice_cli.plan.questions import patched
from llmservice_cli.plan.values import Reading, device, gpu_names

from .arguments import Options
from .choice import Choice


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
    return patched(made, _values(options))


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
    names = gpu_names(options.gpu or ())
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
    reading = Reading()
    for option in (OPTIONS["max_model_len"], OPTIONS["quantization"]):
        reading.take(option.name, option.flag, option.read, getattr(options, option.name))
    if reading.problems:
        raise BadInput(reading.problems)
    return reading.found


def _key(pair: tuple[str, str]) -> dict[str, str]:
    return {"name": pair[0], "key": pair[1]}


WIDTH = 100


@dataclass(frozen=True, slots=True)
class Hint:
    """An optional field: its path below spec, an example, and what it is for."""

    path: str
    value: Any
    why: str


def text(manifest: Json, reasons: Mapping[str, str], hints: tuple[Hint, ...]) -> str:
    """The manifest; reasons are by paths below spec. What is read of it is the manifest, whatever comments say."""
    head = {key: value for key, value in manifest.items() if key != "spec"}
    return "\n".join([_dumped(head), "spec:", *_section(manifest["spec"], reasons, hints, "", 1)]) + "\n"


def _section(
    fields: Mapping[str, Any], reasons: Mapping[str, str], hints: tuple[Hint, ...], path: str, depth: int
) -> Iterator[str]:
    """The fields of one object, each with what is said of it; then hints about others."""
    indent = "  " * depth
    for key, value in fields.items():
        below = f"{path}{key}"
        if below in reasons:
            yield from _comment(reasons[below], indent)
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _section(value, reasons, hints, f"{below}.", depth + 1)
        else:
            yield f"{indent}{_inline({key: value})}"
    for hint in hints:
        name = hint.path.removeprefix(path)
        if hint.path.startswith(path) and name.partition(".")[0] not in fields:
            yield from _comment(hint.why, indent)
            yield from (f"{indent}# {line}" for line in _nested(name, hint.value))


def _nested(name: str, value: Any) -> Iterator[str]:
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        yield f"{'  ' * depth}{parent}:"
    yield f"{'  ' * len(parents)}{_inline({last: value})}"


def _comment(said: str, indent: str) -> Iterator[str]:
    lead = f"{indent}# "
    yield from wrap(clean(" ".join(said.split())), WIDTH, initial_indent=lead, subsequent_indent=lead)


def _inline(fields: Mapping[str, Any]) -> str:
    """One field on one line."""
    if not any(isinstance(value, dict | list) for value in fields.values()):
        return _dumped(fields)
    return _dumped(fields, flow=True)[1:-1]


def _dumped(fields: Mapping[str, Any], *, flow: bool = False) -> str:
    dumped: str = yaml.dump(dict(fields), Dumper=_OneLine, default_flow_style=flow, sort_keys=False, width=2**16)
    return dumped.strip()


class _OneLine(yaml.SafeDumper):
    """Texts that would be written on several lines are quoted with escapes."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_OneLine.add_representer(str, _OneLine.represent_str)


ON_TOP = 1.25
"""Of the weights: what a cache has room for."""


def hints(choice: Choice) -> tuple[Hint, ...]:
    """None about a field that the manifest has; each is admitted once it is uncommented alone."""
    return tuple(_hints(choice))


def _hints(choice: Choice) -> Iterator[Hint]:
    spec, found = choice.manifest["spec"], choice.answer
    model = spec["model"]
    if "hfTokenSecretRef" not in model and str(model["uri"]).startswith("hf://"):
        yield Hint("model.hfTokenSecretRef", {"name": "hf-token", "key": "token"}, "For a gated or private model.")
    if "cache" not in model and str(model["uri"]).startswith(REMOTE):
        size = math.ceil(found.plan.weights_total_gib * ON_TOP) if found and found.plan.weights_total_gib else 50
        yield Hint(
            "model.cache.size", f"{max(1, size)}Gi", "Keeps the model's files in a volume: later starts load no more."
        )
    if found is not None and "precision" not in spec:
        yield from _fp8(found)
    sequences = found.plan.recommended_max_num_seqs if found and found.plan.verdict is Fit.FITS else None
    if sequences and "maxNumSeqs" not in (spec.get("batching") or {}):
        why = "Requests that are computed at once; by default vLLM decides."
        yield Hint("batching.maxNumSeqs", sequences, why)
    if "scaling" not in spec:
        why = "Replicas by the load, and none without requests; scaling.replicas is for a fixed number."
        yield Hint("scaling.autoscaling", {"minReplicas": 0, "maxReplicas": 2}, why)
    if "endpoint" not in spec:
        why = "Clients then need one of the keys of this Secret."
        yield Hint("endpoint.apiKeySecretRef", {"name": "api-keys", "key": "api-key"}, why)


def _fp8(found: Answer) -> Iterator[Hint]:
    """Half of the weights' memory, where they are whole and the GPU computes with fp8."""
    request, plan = found.request, found.plan
    model = request.architecture
    if model is None or model.quantization is not None or request.device is None or request.device.is_cpu:
        return
    asked = replace(request, weights="fp8")
    if refusal(asked) is not None:
        return
    smaller = plan_of(found.question, asked)
    if plan.weights_gib and smaller.weights_gib and smaller.kv_cache_tokens:
        why = (
            f"Weights of {smaller.weights_gib:.1f} instead of {plan.weights_gib:.1f} GiB on each GPU, and a KV cache "
            f"of {smaller.kv_cache_tokens:,} instead of {plan.kv_cache_tokens or 0:,} tokens; answers may get worse."
        )
        yield Hint("precision.weights", "fp8", why)
