"""Whose turn it is, against a model: bounds hold, nobody is lost, and namespaces take turns."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from kubeloop.resources import Key
from llmservice_activator.holding.service import SlotQueue

KEYS = [Key(namespace, name) for namespace in "abc" for name in "xy"]
STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "first", "leave", "next", "done", "take", "limit"]), st.integers(0, 5)),
    max_size=80,
)


BEYOND = [("enter", 0), ("limit", 0), ("next", 0), ("enter", 2), ("limit", 2), ("next", 0)]
"""With one slot, which the first namespace has, a request of the second."""


@given(STEPS, st.integers(1, 4), st.integers(1, 3))
@example(BEYOND, 1, 1)
def test_against_a_model(steps: list[tuple[str, int]], slots: int, of_one_namespace: int) -> None:
    turns: SlotQueue[int] = SlotQueue(slots, of_one_namespace)
    waiting: dict[Key, list[int]] = {key: [] for key in KEYS}
    at_pods: Counter[Key] = Counter()
    limits = dict.fromkeys(KEYS, 0)

    def may_go(key: Key) -> bool:
        of_namespace = sum(at_pods[each] for each in KEYS if each.namespace == key.namespace)
        is_free = at_pods.total() < slots or of_namespace == 0
        return is_free and of_namespace < of_one_namespace and at_pods[key] < limits[key]

    for number, (step, index) in enumerate(steps):
        key = KEYS[index]
        if step in ("enter", "first"):
            turns.enter(key, number, first=step == "first")
            waiting[key].insert(0 if step == "first" else len(waiting[key]), number)
        elif step == "leave" and waiting[key]:
            turns.leave(key, waiting[key].pop(index % len(waiting[key])))
        elif step == "limit":
            limits[key] = number % 3
            turns.limit(key, limits[key])
        elif step == "done" and at_pods[key]:
            turns.done(key)
            at_pods[key] -= 1
        elif step == "take":
            is_free = may_go(key) and not waiting[key]
            assert turns.take(key) == is_free
            at_pods[key] += is_free
        elif step == "next":
            expected = {waiting[each][0]: each for each in KEYS if waiting[each] and may_go(each)}
            got = turns.next()
            assert (got is None) == (not expected)
            if got is not None:
                assert got in expected
                waiting[expected[got]].remove(got)
                at_pods[expected[got]] += 1


def test_nobody_overtakes_who_waits() -> None:
    turns: SlotQueue[int] = SlotQueue(9, 9)
    turns.enter(KEYS[0], 1)
    for key in KEYS:
        turns.limit(key, 1)
    assert not turns.take(KEYS[0])
    assert turns.take(KEYS[1])


@given(st.dictionaries(st.sampled_from(KEYS), st.integers(1, 8), min_size=1))
def test_namespaces_take_turns_and_within_one_its_services(many: dict[Key, int]) -> None:
    turns: SlotQueue[tuple[Key, int]] = SlotQueue(10_000, 10_000)
    for key, count in many.items():
        turns.limit(key, 10_000)
        for number in range(count):
            turns.enter(key, (key, number))
    order = []
    while (got := turns.next()) is not None:
        order.append(got)
    assert Counter(key for key, _ in order) == Counter(many)
    for key in many:
        assert [number for each, number in order if each == key] == list(range(many[key]))
    spread([key.namespace for key, _ in order])
    for namespace in "abc":
        spread([key.name for key, _ in order if key.namespace == namespace])


def spread(order: list[str]) -> None:
    """Between two turns of one, every other that still comes has had exactly one."""
    for name in set(order):
        places = [index for index, each in enumerate(order) if each == name]
        for first, second in pairwise(places):
            between, later = Counter(order[first + 1 : second]), set(order[second:])
            assert all(between[each] == 1 for each in later - {name})
