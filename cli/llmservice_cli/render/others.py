"""`llmservice render --for`: what others need for the services of a file, in place of what the operator makes.

It is printed for `kubectl apply`: so nothing in it has the name of something else of the file, and there is nothing for
a spec that the operator refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.service import LLMService
from llmservice_operator.manifests.gateway import models, picker_name
from llmservice_operator.manifests.router import children
from llmservice_operator.manifests.server import vllm_arguments, vllm_version
from llmservice_planner.checks import check

from llmservice_cli import documents, settings
from llmservice_cli.errors import ExitCode, WrongUsage, print_problems
from llmservice_cli.manifests import File, Json, Manifest, admit, services
from llmservice_cli.render import Options
from llmservice_cli.text import listed

from .decided import namespace_of, new
from .envoy_gateway import Limits, behind, gateway_of
from .picker import NAME_FIELD, name_problem, picker

_EPP, _AI_GATEWAY = "epp", "envoy-ai-gateway"
_OPTIONS = {_EPP: ("image",), _AI_GATEWAY: ("gateway", "requests_per_minute", "tokens_per_minute", "clients_by")}
_OF_THE_OPERATOR = ("config", "settings")
_MOST_NAMES = 3
"""In a message."""


def check_options(options: Options) -> None:
    """WrongUsage for an option of another --for or of none, and where one is missing."""
    for component, names in _OPTIONS.items():
        for option in () if component == options.component else _given(options, names):
            raise WrongUsage(f"{option} is of --for {component}", f"add --for {component}, or leave {option} out")
    if options.component is None:
        return
    for option in _given(options, _OF_THE_OPERATOR):
        raise WrongUsage(f"--for {options.component} does not depend on {option}", f"leave {option} out")
    if options.component == _EPP and options.image is None:
        raise WrongUsage("no image of the endpoint picker is given", "add --image IMAGE")
    if options.component == _AI_GATEWAY:
        _check_limits(options)


def _check_limits(options: Options) -> None:
    has_limit = options.requests_per_minute is not None or options.tokens_per_minute is not None
    if options.gateway is None:
        raise WrongUsage("no Gateway is named", "add --gateway [NAMESPACE/]NAME")
    if has_limit != (options.clients_by is not None):
        needed = "--clients-by HEADER" if has_limit else "--requests-per-minute or --tokens-per-minute"
        raise WrongUsage("a limit is of clients, and of these only", f"add {needed}")


def _given(options: Options, names: Iterable[str]) -> Iterator[str]:
    return (f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """One LLMService of the file, as a cluster would store it."""

    source: Manifest
    service: LLMService

    def __str__(self) -> str:
        return f"{self.service.name} in namespace {self.service.namespace}"

    @property
    def found(self) -> str:
        """For messages about another one."""
        return f"{self} ({self.source.where})"


Holders = Mapping[Hashable, Sequence[_Entry]]
"""Which services have a name."""


def run(options: Options) -> ExitCode:
    """Print the objects of all services as one List. Of several, those without a pool get no picker and a note."""
    file, problems, made = services(options.file), list[Problem](), list[Json]()
    entries, notes = _entries(file, options.namespace, problems), [*file.notes]
    objects = _pickers(entries, options) if options.component == _EPP else _routes(entries, options)
    has_pools = any(each.service.spec.routing.has_pool for each in entries)
    same = _holders(entries, lambda service: [(service.namespace, service.name)])
    for each in entries:
        with each.source.collecting(problems):
            _refuse((*_twice(each, same), *_refused_by_operator(each.service)))
            if options.component == _EPP and has_pools and not each.service.spec.routing.has_pool:
                notes.append(f"{each.source.where}: {each} has no pool, so it gets no picker")
            else:
                made += objects(each)
    rows = (f"{each['kind']} {each['metadata']['namespace']}/{each['metadata']['name']}" for each in made)
    documents.show(options.output, lambda: rows, lambda: {"apiVersion": "v1", "kind": "List", "items": made})
    print_problems(problems, notes)
    return ExitCode.BAD_INPUT if problems else ExitCode.DONE


def _entries(file: File, namespace: str | None, problems: list[Problem]) -> list[_Entry]:
    """Those that an API server takes; what is wrong with the others goes to `problems`."""
    found = []
    for each in file.services:
        with each.collecting(problems):
            admit(each.manifest)
            obj = new(each.manifest, namespace_of(each.manifest, namespace, "default"))
            found.append(_Entry(each, LLMService.from_object(obj)))
    return found


def _holders(entries: Iterable[_Entry], names: Callable[[LLMService], Iterable[Hashable]]) -> Holders:
    found: dict[Hashable, list[_Entry]] = {}
    for each in entries:
        for name in names(each.service):
            found.setdefault(name, []).append(each)
    return found


def _another(holders: Holders, name: Hashable, entry: _Entry) -> _Entry | None:
    """Who else has the name."""
    return next((each for each in holders.get(name, ()) if each is not entry), None)


def _refuse(problems: Iterable[Problem]) -> None:
    if found := tuple(problems):
        raise InvalidSpec(found)


def _twice(entry: _Entry, same: Holders) -> Iterator[Problem]:
    if other := _another(same, (entry.service.namespace, entry.service.name), entry):
        yield Problem("metadata.name", f"{other.found} is a second one of this name.", "Leave one of them out.")


def _refused_by_operator(service: LLMService) -> tuple[Problem, ...]:
    """For what the spec says. That the operator has an image where it names none is assumed: its settings say so."""
    given = settings.defaults()
    image, version = service.spec.runtime.image or given.default_gpu_image, vllm_version(service, given)
    return check(service.spec, image=image, vllm_version=version, arguments=vllm_arguments(service, version))


def _pickers(entries: Sequence[_Entry], options: Options) -> Callable[[_Entry], list[Json]]:
    """What makes the objects of one service, or raises InvalidSpec: for a picker that would replace what serves, or
    that knows the replicas of another pool only."""
    pools = [each for each in entries if each.service.spec.routing.has_pool]
    operators = _holders(entries, lambda service: ((service.namespace, name) for name in _own_names(service)))
    pickers = _holders(pools, lambda service: [(service.namespace, picker_name(service))])

    def problems(entry: _Entry) -> Iterator[Problem]:
        if not entry.service.spec.routing.has_pool:
            yield Problem(
                "spec.routing.mode", f"{entry} has no pool for which a picker could choose.", "Set it to pool."
            )
            return
        name = picker_name(entry.service)
        remedy = "Choose a name that nothing else of the namespace has."
        yield from name_problem(name)
        if owners := operators.get((entry.service.namespace, name)):
            yield Problem(NAME_FIELD, f"{name} is a name of the operator's objects for {owners[0].found}.", remedy)
        if other := _another(pickers, (entry.service.namespace, name), entry):
            message = f"{name} is the picker of {other.found}, and one picker knows the replicas of one pool."
            yield Problem(NAME_FIELD, message, remedy)

    def made(entry: _Entry) -> list[Json]:
        _refuse(problems(entry))
        return picker(entry.service, options.image or "")

    return made


def _own_names(service: LLMService) -> tuple[str, ...]:
    """Of what the operator makes for a service, whether it has a router now or later."""
    return service.name, *(name for _, name in children(service.name))


def _routes(entries: Sequence[_Entry], options: Options) -> Callable[[_Entry], list[Json]]:
    """What makes the objects of one service, or raises InvalidSpec: of two routes for one model a Gateway takes one and
    says of both that it takes them."""
    limits = Limits(options.clients_by, options.requests_per_minute, options.tokens_per_minute)

    def names(service: LLMService) -> Iterator[Hashable]:
        return ((*gateway_of(service, options.gateway), model) for model in dict.fromkeys(models(service)))

    routes = _holders(entries, names)

    def problems(entry: _Entry) -> Iterator[Problem]:
        place = gateway_of(entry.service, options.gateway)
        shared: dict[_Entry, list[str]] = {}
        for model in models(entry.service):
            if other := _another(routes, (*place, model), entry):
                shared.setdefault(other, []).append(model)
        for other, taken in shared.items():
            is_own = any(name in entry.service.served_model_names for name in taken)
            message = f"{other.found} has {listed(taken, _MOST_NAMES)} at this Gateway, too."
            field = "spec.model.servedModelNames" if is_own else "spec.adapters"
            yield Problem(field, message, "Give each service names of its own, or render them for two Gateways.")

    def made(entry: _Entry) -> list[Json]:
        _refuse(problems(entry))
        return behind(entry.service, options.gateway, limits)

    return made
