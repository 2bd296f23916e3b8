"""`llmservice init`: a manifest from options or answers, planned, and admitted as an API server with this CRD would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from llmservice_operator.api.errors import InvalidSpec
from llmservice_operator.planner.plan import Fit

from llmservice_cli.api import Json
from llmservice_cli.documents import tell, written
from llmservice_cli.errors import BadInput, CliError, ExitCode, WrongUsage, print_problems, say
from llmservice_cli.manifests import admit
from llmservice_cli.plan.answers import Answer
from llmservice_cli.plan.document import words_of
from llmservice_cli.plan.models import meant
from llmservice_cli.plan.screen import outcome

from . import asking
from .arguments import Options
from .choice import Choice, choose
from .hints import hints
from .manifest import llmservice, namespace
from .world import World, look
from .written import text

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
    if is_asking := asking.is_asked_for(options):
        options = asking.identity(options)
    asking.without_questions(options)
    admitted(llmservice(options))  # before anything is asked of a cluster or a hub
    world = await look(options, meant(options.model or "", []))
    print_problems((), world.notes)
    if is_asking:
        options = asking.wishes(options, world)
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
