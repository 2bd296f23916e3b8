"""What a seed does: the same steps each time, whatever the cluster makes of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, TypeVar

from llmservice_api.constants import SERVICE_LABEL

from tests.chaos.actions import (
    Action,
    Apply,
    Delete,
    DeleteOperatorPod,
    Desired,
    EndPod,
    Engine,
    ForeignDelete,
    ForeignEdit,
    KillOperator,
    RefusedEdit,
    Restart,
    SkewLease,
    Step,
    Storm,
)
from tests.chaos.faults import Kind

T = TypeVar("T")

# Requests run on these all the time; what is done to them must lose none, but for a killed pod's.
PROBED = ("steady-0", "steady-1")
WILD = tuple(f"wild-{number}" for number in range(6))
FAILURES = ("kv-cache-too-small", "unsupported-architecture", "gpu-out-of-memory", "exit-0")
CASCADES: tuple[Literal["Background", "Foreground", "Orphan"], ...] = ("Background", "Foreground", "Orphan")
COMPONENTS: tuple[Literal["kube-apiserver", "etcd"], ...] = ("kube-apiserver", "etcd")
SKEWS = (-3600, -30, -9, 9, 30, 3600, 86_400)
# Whether requests run on the pod's service, and how it ends.
Ending = Literal["evict", "delete", "kill"]
ENDS: tuple[tuple[bool, Ending], ...] = (
    *((True, "evict"),) * 4,
    (True, "kill"),
    *((False, "delete"),) * 2,
    (False, "kill"),
)
# A service that goes again before it has taken the orphans of its name back leaves them behind, and rightly.
ADOPTED_WITHIN = 60.0
# Seconds at the end without a new blow, so that the last ones have come to something.
TAIL = 10.0

SERVICES = "services"
DEPLOYMENTS = "deployments"
BUDGETS = "poddisruptionbudgets"
# What somebody else edits, and whether requests run on its service. One replica has no budget.
EDITED = (*[(DEPLOYMENTS, False)] * 3, *[(SERVICES, False)] * 2, (DEPLOYMENTS, True), (SERVICES, True), (BUDGETS, True))


@dataclass
class World:
    """What the services are to be after the steps so far; None: there is none of that name."""

    chance: Random
    desired: dict[str, Desired | None]
    due: list[Step] = field(default_factory=list)
    adopting: dict[str, float] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    decks: dict[str, list[Any]] = field(default_factory=dict)
    now: float = 0.0

    def deal(self, deck: str, cards: Sequence[T], may_come: Callable[[T], bool] = lambda _: True) -> T:
        """The next that may come. Drawn without putting back, so that a few minutes have some of each."""
        left: list[T] = self.decks.setdefault(deck, [])
        if not any(map(may_come, left)):
            left += self.chance.sample(list(cards), len(cards))
        return left.pop(next(index for index, card in enumerate(left) if may_come(card)))

    def present(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if self.desired[name] is not None]

    def apply(self, name: str, desired: Desired, why: str) -> Apply:
        self.desired[name] = desired
        return Apply(name, desired, why)

    def spec(self, name: str) -> Desired:
        held = self.desired[name]
        assert held is not None, name
        return held


def plan(seed: int, seconds: float, engine: Engine = "stand-in") -> tuple[Step, ...]:
    """The steps of a run; the last leaves the way to the API server free of faults.

    `engine`: what the first of the probed services runs. Two processors carry no more of vLLM itself than that.
    """
    world = World(Random(seed), dict.fromkeys((*PROBED, *WILD)))
    engines: Mapping[str, Engine] = {PROBED[0]: engine}
    steps = [
        Step(0.0, world.apply(name, Desired(replicas=2, engine=engines.get(name, "stand-in")), "the beginning"))
        for name in PROBED
    ]
    steps += [
        Step(0.0, world.apply(name, Desired(replicas=1 + number % 2), "the beginning"))
        for number, name in enumerate(WILD)
    ]
    deck = [draw for draw, count in DECK.items() for _ in range(count)]
    while True:
        world.now += world.chance.uniform(0.5, 4.0)
        if world.now > seconds - TAIL:
            break
        steps += _fallen_due(world)
        steps.append(Step(world.now, world.deal("blows", deck)(world)))
    world.now = seconds - TAIL
    steps += [replace(step, at=min(step.at, world.now)) for step in sorted(world.due, key=lambda step: step.at)]
    return (*steps, Step(world.now, Storm(())))


def outcome(steps: Sequence[Step]) -> Mapping[str, Desired | None]:
    """What the services are to be after the steps."""
    found: dict[str, Desired | None] = {}
    for step in steps:
        match step.action:
            case Apply(name, desired):
                found[name] = desired
            case Delete(name):
                found[name] = None
    return found


def _fallen_due(world: World) -> list[Step]:
    due = sorted((step for step in world.due if step.at <= world.now), key=lambda step: step.at)
    world.due = [step for step in world.due if step.at > world.now]
    for step in due:
        if isinstance(step.action, Apply):
            world.desired[step.action.name] = step.action.desired
    return due


def _edit_probed(world: World) -> Action:
    """Another number of replicas, another template, other drain settings: none of them may lose a request."""
    name = world.chance.choice(PROBED)
    held = world.spec(name)
    changes = {
        "another number of replicas": replace(held, replicas=5 - held.replicas),
        "another template": replace(held, max_num_seqs=held.max_num_seqs + 1),
        "other drain settings": replace(held, drain_seconds=held.drain_seconds + 1),
    }
    why = world.deal("edits", sorted(changes))
    return world.apply(name, changes[why], why)


def _edit_wild(world: World) -> Action:
    name = world.chance.choice(world.present(WILD))
    held, chance = world.spec(name), world.chance
    changes: list[tuple[str, Desired]] = [
        ("another number of replicas", replace(held, replicas=chance.choice([0, 1, 2]))),
        ("another template", replace(held, max_num_seqs=held.max_num_seqs + 1)),
        ("other drain settings", replace(held, drain_seconds=held.drain_seconds + 1)),
        ("a start that fails", replace(held, fails=chance.choice(FAILURES))),
        ("a flag that is none", replace(held, unknown_flag=True)),
        ("a pause", replace(held, paused=True)),
        ("all well again", Desired(replicas=chance.choice([1, 2]), max_num_seqs=held.max_num_seqs)),
    ]
    is_well = not (held.fails or held.unknown_flag or held.paused)
    if world.adopting.get(name, 0.0) > world.now:
        changes = [changes[1], changes[2]]
    # Half of the time a harmed one is mended, so that most serve at any time.
    why, desired = changes[-1] if not is_well and chance.random() < 0.5 else chance.choice(changes)
    return world.apply(name, desired, why)


def _refused(world: World) -> Action:
    return RefusedEdit(world.chance.choice([*PROBED, *world.present(WILD)]))


def _delete(world: World) -> Action:
    """It mostly comes again, and an orphaning always: whose else would the orphans be?"""
    may_go = [name for name in world.present(WILD) if world.adopting.get(name, 0.0) <= world.now]
    if len(may_go) < 3:
        return _edit_wild(world)
    name = world.chance.choice(may_go)
    # Fields of orphans that somebody else has set are his, and adopting them would take them from him: a NameConflict.
    action = Delete(name, world.deal("cascades", CASCADES, lambda way: way != "Orphan" or name not in world.touched))
    world.touched.discard(name)
    held, wait = world.spec(name), world.chance.choice([0.0, 1.0, 5.0, 12.0])
    world.desired[name] = None
    again = replace(held, max_num_seqs=held.max_num_seqs + world.chance.choice([0, 1]))
    if action.cascade == "Orphan":
        again = Desired(replicas=1, max_num_seqs=again.max_num_seqs)
        world.adopting[name] = world.now + wait + ADOPTED_WITHIN
    if action.cascade == "Orphan" or world.chance.random() < 0.8:
        world.due.append(Step(world.now + wait, Apply(name, again, "it comes again")))
    return action


def _foreign_edit(world: World) -> Action:
    chance = world.chance
    label = {"metadata": {"labels": {"team": f"blue-{chance.randrange(9)}"}}}
    harmless: Mapping[str, list[Mapping[str, object]]] = {
        DEPLOYMENTS: [label, {"spec": {"replicas": 4}}, {"spec": {"revisionHistoryLimit": 1}}],
        SERVICES: [label],
        BUDGETS: [{"spec": {"maxUnavailable": None, "minAvailable": 0}}],
    }
    harmful: Mapping[str, list[Mapping[str, object]]] = {
        DEPLOYMENTS: [
            {"spec": {"replicas": 0}},
            {"spec": {"paused": True}},
            {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}},
        ],
        SERVICES: [
            {"spec": {"selector": {SERVICE_LABEL: "nobody"}}},
            {"spec": {"publishNotReadyAddresses": True}},
        ],
        BUDGETS: [],
    }
    plural, is_probed = world.deal("edited", EDITED)
    patches = harmless[plural] if is_probed else [*harmless[plural], *harmful[plural]]
    patch = world.deal(f"edits of {plural}, {is_probed}", patches)
    name = chance.choice(PROBED if is_probed else world.present(WILD))
    world.touched.add(name)
    return ForeignEdit(name, plural, patch)


def _foreign_delete(world: World) -> Action:
    plural = world.deal("foreign deletes", (DEPLOYMENTS, SERVICES, BUDGETS, "controllerrevisions"))
    names = world.present(WILD)
    # One replica has no budget.
    several = [name for name in names if world.spec(name).replicas > 1] if plural == BUDGETS else []
    return ForeignDelete(world.chance.choice(several or names), plural)


def _end_pod(world: World) -> Action:
    is_probed, how = world.deal("ends", ENDS)
    name = world.chance.choice(PROBED if is_probed else world.present(WILD))
    return EndPod(name, world.chance.randrange(100), how)


def _storm(world: World) -> Action:
    """Some kinds of faults at once for some seconds; mild enough that work gets done, strong enough to hit it all."""
    chance = world.chance
    kinds: list[Kind] = []
    for _ in range(chance.randrange(1, 5)):
        kinds.append(world.deal("faults", sorted(Kind), lambda kind: kind not in kinds))
    shares = tuple((kind, round(chance.uniform(0.05, 0.35) / len(kinds) ** 0.5, 3)) for kind in kinds)
    world.due = [step for step in world.due if not isinstance(step.action, Storm)]
    world.due.append(Step(world.now + chance.uniform(6, 20), Storm(())))
    return Storm(shares)


def _kill_component(world: World) -> Action:
    return Restart(world.deal("kills", COMPONENTS), "kill", round(world.chance.uniform(0.5, 5), 1))


def _stop_component(world: World) -> Action:
    return Restart(world.deal("stops", COMPONENTS), "stop", round(world.chance.uniform(0.5, 5), 1))


def _skew(world: World) -> Action:
    return SkewLease(world.deal("skews", SKEWS))


def _kill_operator(world: World) -> Action:
    return KillOperator(world.chance.randrange(100))


def _delete_operator(world: World) -> Action:
    return DeleteOperatorPod(world.chance.randrange(100))


# Three minutes have about 75 blows, and so all of these.
DECK: Mapping[Callable[[World], Action], int] = {
    _edit_probed: 7,
    _edit_wild: 11,
    _refused: 2,
    _delete: 6,
    _foreign_edit: 8,
    _foreign_delete: 5,
    _end_pod: 8,
    _kill_operator: 3,
    _delete_operator: 2,
    _kill_component: 2,
    _stop_component: 1,
    _skew: 3,
    _storm: 7,
}
