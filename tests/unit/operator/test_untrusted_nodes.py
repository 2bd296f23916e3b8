"""Nodes' labels and capacities and pods' requests, as other people write them: read, or refused one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_api.errors import UnreadableObject
from llmservice_operator.readers.nodes import node_room, placed_of
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.quantity import amount
from llmservice_planner.room import Room, fitting, free_gpus, nodes_for, requests_of

from tests.unit.hostile import objects
from tests.unit.kubeloop.test_nodes import AMD, GPU, LABELS, TAINT, node

POD = {
    "metadata": {"name": "p", "namespace": "n", "labels": {}, "ownerReferences": [{"name": "o", "controller": True}]},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "a", "resources": {"requests": {GPU: "1", "cpu": "500m", "memory": "1Gi"}}}],
        "initContainers": [{"name": "b", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        "overhead": {"cpu": "10m"},
    },
    "status": {"phase": "Running"},
}


def gpus(obj: Any) -> object:
    found = [room for room in (node_room(obj),) if room is not None]
    return ClusterGPUs.of(found, GPU)


READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "what a node has": (node(LABELS | AMD, taints=[TAINT]), gpus),
    "an empty node": (node(LABELS, taints=[TAINT]), node_room),
    "a pod": (POD, placed_of),
}


@pytest.mark.parametrize("case", READERS)
@given(data=st.data())
def test_any_node_or_pod(case: str, data: st.DataObject) -> None:
    whole, read = READERS[case]
    with contextlib.suppress(UnreadableObject):
        read(data.draw(objects(whole)))


STORED = ["1", "0", "-1", "1e18", "9223372036854775807", "1n", "1m", "7E", "0.000001", "1e-9"]


@pytest.mark.parametrize("quantity", STORED)
def test_any_amount_that_kubernetes_stores_is_computed_with(quantity: str) -> None:
    pod = {"containers": [{"resources": {"requests": {"cpu": quantity, GPU: "1"}}}]}
    room = Room(tuple(filter(None, [node_room(node(LABELS, {GPU: "8", "cpu": "9223372036854775807"}))])))
    assert [fitting(node, requests_of(pod)) for node in nodes_for(room, pod)]
    free_gpus(room, GPU)
    amount(quantity)
