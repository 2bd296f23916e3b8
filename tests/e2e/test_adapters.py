"""LoRA adapters under their own names: added, removed and put back while the pod serves, and closed to clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import pytest
from llmservice_runtime.contract import STATE_PATH, STATE_PORT, State

from localcluster.tinymodel.cache import model_folder
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.variants import ADAPTER_QUESTION, VARIANTS, Adapter
from tests.e2e.conftest import own_namespace
from tests.support.audit import writes_since
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.foreign import theirs
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.measured import Record
from tests.support.models import model_uri
from tests.support.patience import PATIENCE
from tests.support.services import idle, llmservice
from tests.support.serving import READY_WITHIN, Server

NAMESPACE = "e2e-adapters"
# The kubelet looks at ConfigMaps once a minute, and finds the change then or the next time.
SHOWN_WITHIN = 180
RESTARTED_WITHIN = 300
RED, GREEN, BLUE = "red", "green", "blue"
FETCHED = "hf://team/blue"
# The node's own address on the pods' network.
BRIDGE = "10.244.0.1"


@dataclass
class Adapted:
    """A service with adapters, and what its status said on the way."""

    server: Server
    progress: list[JSON] = field(default_factory=list)
    status_writes: int = 0
    """Until it was ready."""
    seconds: float = 0.0
    """Until it was ready."""

    def listed(self, *colours: str) -> list[JSON]:
        """spec.adapters for these."""
        return [{"name": c, "uri": uri_of(self.server.cluster, c)} for c in colours]

    def ask_for(self, adapters: list[JSON]) -> None:
        self.server.cluster.patch("llmservices", NAMESPACE, self.server.name, {"spec": {"adapters": adapters}})

    def status(self) -> JSON:
        return self.server.cluster.status(NAMESPACE, self.server.name)

    def ready_since(self) -> str:
        ready = self.server.cluster.wait_condition(NAMESPACE, self.server.name, "Ready", "True", timeout=0)
        return str(ready["lastTransitionTime"])

    def models(self) -> set[str]:
        """What vLLM says that it serves."""
        listed = httpx.get(f"{self.server.url}/v1/models", timeout=PATIENCE, trust_env=False).raise_for_status().json()
        return {card["id"] for card in listed["data"]}

    def says(self, colour: str) -> bool:
        """Whether the adapter answers with the sentence that it alone was taught."""
        variant = VARIANTS[f"adapter-{colour}"]
        assert isinstance(variant, Adapter)
        return self.server.say(ADAPTER_QUESTION, model=colour) == variant.answer

    def run_of_the_server(self) -> tuple[str, int, int]:
        """Pod uid, restarts of its container, and the number of the vLLM process in it."""
        (pod,) = self.server.pods()
        (container,) = [c for c in pod["status"]["containerStatuses"] if c["name"] == "server"]
        return pod["metadata"]["uid"], container["restartCount"], int(self.in_server(FIND + "print(vllm)"))

    def in_server(self, script: str) -> str:
        (pod,) = self.server.pods()
        name = pod["metadata"]["name"]
        return self.server.cluster.kubectl("exec", "-n", NAMESPACE, name, "-c", "server", "--", "python3", "-c", script)

    def state(self) -> State | None:
        """What the supervisor says; None where nobody answers."""
        (pod,) = self.server.pods()
        try:
            url = f"http://{pod['status']['podIP']}:{STATE_PORT}{STATE_PATH}"
            return State.from_json(httpx.get(url, timeout=5, trust_env=False).text)
        except httpx.TransportError:
            return None


def uri_of(cluster: Cluster, colour: str) -> str:
    """Blue is fetched from a hub, the others are mounted."""
    return FETCHED if colour == BLUE else model_uri(cluster, NAMESPACE, f"adapter-{colour}")


FIND = """
import os, pathlib, signal
def is_vllm(folder):
    try:
        return b"vllm.entrypoints.openai.api_server" in (folder / "cmdline").read_bytes().split(b"\\0")
    except OSError:
        return False
vllm = min(int(folder.name) for folder in pathlib.Path("/proc").glob("[0-9]*") if is_vllm(folder))
"""


@pytest.fixture(scope="module")
def adapted(cluster: Cluster) -> Iterator[Adapted]:
    stack = ExitStack()
    stack.enter_context(own_namespace(cluster, NAMESPACE))
    adapters = [{"name": c, "uri": uri_of(cluster, c)} for c in (RED, GREEN)]
    model_uri(cluster, NAMESPACE, f"adapter-{BLUE}")
    hub = Hub({"team/blue": Repo.of_folder(model_folder(VARIANTS[f"adapter-{BLUE}"]))})
    stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
    # As many as there will be, so that none waits for another's place.
    lora = {"maxLoras": 3, "maxLoraRank": 8}
    runtime = {"env": [{"name": "HF_ENDPOINT", "value": hub.url}]}
    cluster.apply(llmservice("adapted", adapters=adapters, lora=lora, runtime=runtime), NAMESPACE)
    progress: list[JSON] = []
    moment = time.time()

    def has_started() -> bool:
        service = cluster.must_get("llmservices", NAMESPACE, "adapted")
        seen = service.get("status", {}).get("progress")
        if seen and seen not in progress:
            progress.append(seen)
        return is_ready(service)

    try:
        eventually("the service Ready", has_started, READY_WITHIN)
        server = Server("adapted", cluster.service_url(NAMESPACE, "adapted"), cluster, NAMESPACE)
        about = [w.name for w in writes_since(cluster, moment) if w.resource == "llmservices/status"]
        yield Adapted(server, progress, about.count("adapted"), time.time() - moment)
    finally:
        stack.close()


@pytest.mark.full
def test_adapters_answer_under_their_own_names(adapted: Adapted) -> None:
    assert adapted.models() == {"adapted", RED, GREEN}
    assert adapted.says(RED)
    assert adapted.says(GREEN)
    base = dict(PAIRS)[ADAPTER_QUESTION]
    assert adapted.server.say(ADAPTER_QUESTION) == base
    other, answer = next(pair for pair in PAIRS if pair[0] != ADAPTER_QUESTION)
    assert adapted.server.say(other, model=RED) == answer, "what it was not taught stays the base model's"


@pytest.mark.full
def test_the_status_tells_the_start_what_was_measured_and_the_adapters(adapted: Adapted, record: Record) -> None:
    assert {progress["phase"] for progress in adapted.progress} >= {"Loading"}
    # Four steps of the rollout, four phases of the server, and between them one every 15 seconds.
    assert adapted.status_writes <= 8 + adapted.seconds / 15
    record(status_writes_of_a_start=adapted.status_writes, seconds_of_the_start=round(adapted.seconds, 1))
    status = eventually("every adapter reported", lambda: reported(adapted.status(), RED, GREEN), 60)
    assert status["endpoint"]["modelNames"] == ["adapted", GREEN, RED]
    assert "progress" not in status
    measured = status["measured"]
    assert measured["kvCacheTokens"] > 0
    assert measured["startSeconds"] > 0
    wide = adapted.server.cluster.kubectl("get", "llms", "adapted", "-n", NAMESPACE, "-o", "wide")
    assert str(measured["kvCacheTokens"]) in wide.splitlines()[1].split()


def reported(status: JSON, *served: str) -> JSON | None:
    """The status once it says that exactly these are served."""
    names = {item["name"] for item in status.get("adapters", []) if item["loaded"]}
    return status if names == set(served) else None


@pytest.mark.full
def test_adding_and_removing_one_restarts_nothing(adapted: Adapted, record: Record) -> None:
    before, since = adapted.run_of_the_server(), adapted.ready_since()
    adapted.ask_for(adapted.listed(RED, GREEN, BLUE))
    asked = time.monotonic()
    eventually("the third adapter", lambda: BLUE in adapted.models(), SHOWN_WITHIN)
    seconds = time.monotonic() - asked
    assert adapted.says(BLUE)
    assert adapted.says(RED)
    eventually("the status of three", lambda: reported(adapted.status(), RED, GREEN, BLUE), 90)
    adapted.ask_for(adapted.listed(RED, BLUE))
    eventually("two adapters", lambda: adapted.models() == {"adapted", RED, BLUE}, SHOWN_WITHIN)
    answer = adapted.server.chat(ADAPTER_QUESTION, model=GREEN)
    assert answer["status"] == 404
    assert adapted.run_of_the_server() == before
    assert adapted.ready_since() == since, "it was Ready all the time"
    record(seconds_until_an_added_adapter_serves=round(seconds, 1))


@pytest.mark.full
def test_a_broken_one_is_reported_and_the_others_serve(adapted: Adapted) -> None:
    broken = {"name": "broken", "uri": adapted.listed(RED)[0]["uri"].rpartition("/")[0] + "/no-such-adapter"}
    adapted.ask_for([*adapted.listed(RED, BLUE), broken])

    def refused() -> JSON | None:
        found: list[JSON] = adapted.status().get("adapters", [])
        return next((item for item in found if item["name"] == "broken" and item.get("message")), None)

    reported_names = eventually("the broken adapter in the status", refused, SHOWN_WITHIN)
    assert "spec.adapters" in reported_names["message"]
    ready = adapted.server.cluster.condition(NAMESPACE, "adapted", "Ready") or {}
    assert ready["status"] == "True"
    assert "broken" in ready["message"]
    events = adapted.server.cluster.list("events", NAMESPACE)
    assert [event for event in events if event["reason"] == "AdapterNotServed" and event["type"] == "Warning"]
    assert adapted.says(RED)
    adapted.ask_for(adapted.listed(RED, BLUE))
    eventually("the status of two", lambda: reported(adapted.status(), RED, BLUE), SHOWN_WITHIN)


@pytest.mark.full
def test_after_a_restart_they_are_back_before_it_is_ready(adapted: Adapted) -> None:
    uid, restarts, _ = adapted.run_of_the_server()
    adapted.in_server(FIND + "os.kill(vllm, signal.SIGKILL)")
    eventually("the end of the server", lambda: (state := adapted.state()) is None or not state.started, 60)

    def started() -> State | None:
        state = adapted.state()
        return state if state is not None and state.started else None

    first = eventually("the server started again", started, RESTARTED_WITHIN)
    assert {adapter.name for adapter in first.adapters if adapter.loaded} == {RED, BLUE}
    adapted.server.cluster.wait_condition(NAMESPACE, "adapted", "Ready", "True", timeout=60)
    assert adapted.run_of_the_server()[:2] == (uid, restarts + 1)
    assert adapted.says(RED)
    assert adapted.says(BLUE)


@pytest.mark.parallel
def test_without_lora_the_list_goes(cluster: Cluster, namespace: str) -> None:
    """And one that somebody else made under its name is left alone, and named."""
    cluster.apply(idle("listed", lora={}), namespace)
    eventually("the list", lambda: cluster.get("configmaps", namespace, "listed-adapters"), 30)
    cluster.patch("llmservices", namespace, "listed", {"spec": {"lora": None}})
    eventually("no list", lambda: not cluster.get("configmaps", namespace, "listed-adapters"), 30)
    cluster.apply(theirs("configmaps", "met-adapters"), namespace)
    cluster.apply(idle("met", lora={}), namespace)
    refused = cluster.wait_condition(namespace, "met", "Accepted", "False", reason="NameConflict", timeout=30)
    assert "ConfigMap met-adapters" in refused["message"]
    stored = cluster.must_get("configmaps", namespace, "met-adapters")
    assert stored["data"] == {"theirs": "1"}
    assert "ownerReferences" not in stored["metadata"]
