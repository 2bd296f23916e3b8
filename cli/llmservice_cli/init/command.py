"""`llmservice init`: a manifest from options or answers, planned, and admitted as an API server with this CRD would.

The YAML has a comment above what was chosen, and optional fields commented out.
"""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from click import BadParameter
from llmservice_api.constants import API_VERSION, KIND
from llmservice_api.errors import InvalidSpec
from llmservice_planner.plan import Fit
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.documents import tell, written
from llmservice_cli.errors import BadInput, CliError, ExitCode, Refused, WrongUsage, print_problems, say
from llmservice_cli.init import Options, pair
from llmservice_cli.manifests import admit
from llmservice_cli.models import REMOTE, meant
from llmservice_cli.plan import OPTIONS, values
from llmservice_cli.plan.answers import Answer, plan_of, words_of
from llmservice_cli.plan.compare import refusal
from llmservice_cli.plan.questions import patched
from llmservice_cli.plan.text import outcome
from llmservice_cli.plan.values import ValueReader, device, gpu_names

from .choice import Choice, World, choose, look, shown


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
    reading = ValueReader()
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


_ORDER = ("model", "accelerator", "parallelism", "precision", "batching", "scaling", "endpoint")
"""Of the sections that options can make."""
NO_CPU_IMAGE = (
    "no image with vLLM for CPUs is known of the cluster's operator: set spec.runtime.image,"
    " or have services.defaultCpuImage set in the operator's chart"
)
RBAC = "rbac.authorization.k8s.io"


async def run(options: Options) -> ExitCode:
    """Print it; BadInput where the operator would refuse it, and nothing where it does not fit."""
    if options.out is not None and options.out.exists() and not options.force:
        raise BadInput.of("--out", f"{options.out} is there already.", "Name another file, or add --force.")
    if is_asking := is_asked_for(options):
        options = identity(options)
    without_questions(options)
    admitted(llmservice(options))  # before anything is asked of a cluster or a hub
    world = await look(options, meant(options.model or "", []))
    print_problems((), world.notes)
    if is_asking:
        options = wishes(options, world)
    others = tuple(roles(options))
    choice = choose(admitted(llmservice(options, world.products)), world)
    admitted(choice.manifest)
    if not options.force:
        _refuse(choice)
    _say(choice, world)
    write(document(choice, others, options.output), options.out)
    return ExitCode.DOES_NOT_FIT if choice.is_refused else ExitCode.DONE


def admitted(manifest: Json) -> Json:
    """The manifest; BadInput for what an API server with this CRD would refuse."""
    try:
        admit(manifest)
    except InvalidSpec as invalid:
        raise BadInput(invalid.problems) from None
    return manifest


def document(choice: Choice, others: tuple[Json, ...], output: str) -> str:
    """What is printed: YAML with comments, or JSON."""
    if output == "json":
        items = [ordered(choice.manifest), *others]
        whole = items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}
        return written("json", whole)
    first = text(ordered(choice.manifest), choice.reasons, hints(choice))
    return first + "".join(f"---\n{yaml.safe_dump(each, sort_keys=False)}" for each in others)


def ordered(manifest: Json) -> Json:
    """From what is served to who may use it."""
    spec = manifest["spec"]
    return {**manifest, "spec": {name: spec[name] for name in sorted(spec, key=_ORDER.index)}}


def write(content: str, out: Path | None) -> None:
    """To a file, or standard output."""
    if out is None:
        tell(content, end="")
        return
    try:
        out.write_text(content, encoding="utf-8")
    except OSError as error:
        raise BadInput.of(
            "--out", f"{out} cannot be written: {error.strerror or error}.", "Name another file."
        ) from None
    say(f"wrote {out}")


def _refuse(choice: Choice) -> None:
    """CliError for what is known not to fit, with what would."""
    if not choice.is_refused or choice.answer is None:
        return
    plan = choice.answer.plan
    remedies = "".join(f"\n    {words_of(one, is_manifest=True)}: {outcome(one)}" for one in plan.remedies)
    raise CliError(
        f"it does not fit: {plan.reason}", f"give other options, or print it with --force and change it{remedies}"
    )


def _say(choice: Choice, world: World) -> None:
    """What the reader of the manifest cannot see in it."""
    found = choice.answer
    if found is None and world.model is not None:
        say("note: no GPU is known to plan for: name one with --gpu, or --cpu")
    if found is not None:
        say(f"note: {_verdict(found)}")
    is_cpu = (choice.manifest["spec"].get("accelerator") or {}).get("type") == "cpu"
    if is_cpu and "cpu" in world.seen and not world.seen["cpu"].has_cpu_image:
        say(f"note: {NO_CPU_IMAGE}")


def _verdict(found: Answer) -> str:
    plan, place = found.plan, found.placement
    said = f"{plan.verdict}: {plan.reason}"
    if place is not None and place.lacks_room and plan.verdict is not Fit.DOES_NOT_FIT:
        said += f" The cluster has no room for it now. {place.reason or ''}".rstrip()
    return said


def roles(options: Options) -> Iterator[Json]:
    """What lets the activator read the keys, where it checks them."""
    if options.min_replicas != 0 or not options.api_key_secret:
        return
    if not options.namespace:
        raise WrongUsage("the Role for the activator belongs to a namespace", "give it with -n")
    name, (where, account) = f"{options.name}-activator", options.activator
    metadata = {"name": name, **namespace(options)}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [options.api_key_secret[0]], "verbs": ["get"]}
    yield {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": where}],
    }


_BOUNDS = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
ANY, CPU, OWN, NONE = "any", "cpu", "own", "none"


def is_asked_for(options: Options) -> bool:
    """Whether questions are to be asked: something is missing, and somebody is there."""
    return (options.name is None or options.model is None) and not options.yes and sys.stdin.isatty()


def without_questions(options: Options) -> None:
    """WrongUsage that names what is missing."""
    missing = [flag for flag, value in (("NAME", options.name), ("--model", options.model)) if value is None]
    if missing:
        raise WrongUsage(f"{' and '.join(missing)} must be given", "give them, or run it on a terminal, where it asks")


def identity(options: Options) -> Options:
    """With a model and a name."""
    model = options.model or _ask("model: hf://ORG/NAME or ORG/NAME, s3://, gs:// or az://BUCKET/PREFIX, ...", _text)
    name = options.name or _ask("name of the LLMService", _name, default=proposed_name(model))
    return replace(options, name=name, model=model)


def wishes(options: Options, world: World) -> Options:
    """With what else matters, as far as it is not given; the cluster says what there is."""
    options = _where(options, world)
    if options.max_model_len is None:
        own = world.model.architecture.max_position_embeddings if world.model and world.model.architecture else None
        of_model = f"; {OWN}: the model's {own:,}, or what fits" if own else f"; {OWN}: the model's, or what fits"
        length = _ask(f"longest request in tokens, such as 16K{of_model}", _length, default=OWN)
        options = replace(options, max_model_len=None if length == OWN else length)
    if (options.replicas, options.min_replicas, options.max_replicas) == (None, None, None):
        said = "replicas: a number, or FEWEST-MOST to follow the load (0-3: none without requests)"
        fewest, most = _ask(said, _bounds, default="1")
        fixed = {"replicas": None if fewest == 1 else fewest}
        options = replace(options, **(fixed if most is None else {"min_replicas": fewest, "max_replicas": most}))
    if options.api_key_secret is None:
        key = _ask("Secret and key with the API keys of clients, SECRET/KEY", _pair_or_none, default=NONE)
        options = replace(options, api_key_secret=key)
    if options.min_replicas == 0 and options.api_key_secret and options.namespace is None:
        return replace(options, namespace=_ask("namespace, which the rights on the Secret are for", _name))
    return options


def proposed_name(model: str) -> str:
    """Of the last part of a uri; `chat` where there is nothing to use."""
    last = model.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-") or "chat"


def _where(options: Options, world: World) -> Options:
    if options.cpu or options.gpu:
        return options
    offered = world.gpus
    has = f"; the cluster has {', '.join(shown(offered))}" if offered else ""
    said = f"GPU: a product, {CPU}, or {ANY} that fits{has}"
    where = _ask(said, _text, default=ANY if offered or not world.seen else CPU)
    if where == CPU:
        return replace(options, cpu=True)
    return options if where == ANY else replace(options, gpu=[where])


def _ask(said: str, read: Callable[[str], Any], default: str | None = None) -> Any:
    """Until an answer can be read; an end of standard input ends it."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    shown_default = "" if default is None else f" [{default}]"
    with _interruptible():
        while True:
            console.print(f"{said}{shown_default}: ", end="", markup=False, soft_wrap=True)
            line = sys.stdin.readline()
            if not line:
                raise WrongUsage("standard input ended before the last answer", "answer, or give all of it as options")
            try:
                return read(line.strip() or default or "")
            except ValueError as refused:
                console.print(f"  {refused}", markup=False, soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends it at once: the handler of asyncio would wait until a line is there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _text(answer: str) -> str:
    if not answer:
        raise ValueError("Write something.")
    return meant(answer, [])


def _name(answer: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", answer):
        raise ValueError("Write lowercase letters, digits and -, a letter first.")
    return answer


def _length(answer: str) -> str:
    if answer != OWN:
        values.length(answer)
    return answer


def _bounds(answer: str) -> tuple[int, int | None]:
    found = _BOUNDS.fullmatch(answer)
    if found is None or (found[2] is not None and int(found[2]) < max(1, int(found[1]))):
        raise ValueError("Write a number such as 2, or two such as 0-3.")
    return int(found[1]), None if found[2] is None else int(found[2])


def _pair_or_none(answer: str) -> tuple[str, str] | None:
    if answer == NONE:
        return None
    try:
        return pair(answer)
    except BadParameter:
        raise ValueError(f"Write two names with a slash between, or {NONE}.") from None
