"""KEDA's calls to a whole scaler: gRPC with mutual TLS on loopback, the API server simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubeloop.resources import Key
from llmservice_activator import server
from llmservice_api.constants import LLMSERVICE

from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import certificates, pod, reference, request, running, service

__all__ = ["certificates"]

CODE = grpc.StatusCode


async def test_replicas_follow_the_requests_of_all_pods(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiServer(service(replicas=2), pod("a", address="10.0.0.1"), pod("b", address="10.0.0.2"))
    async with running(api, certificates) as world, world.keda() as keda:
        world.in_flight |= {"10.0.0.1": 30, "10.0.0.2": 19}
        assert await keda.replicas() == 4
        text = world.page().decode()
        assert 'llmservice_scaler_desired_replicas{namespace="ns",service="chat"} 4.0' in text
        assert 'llmservice_scaler_calls_total{code="OK",method="GetMetrics"} 1.0' in text
        monkeypatch.setattr("llmservice_activator.metrics.LASTING", 0.0)
        assert "llmservice_scaler_desired_replicas{" not in world.page().decode(), "an old answer"


async def test_a_number_between_two_is_rounded_up_for_readers_of_the_integer(certificates: Path) -> None:
    """9 of 10 replicas: 9 itself would be within the HPA's tolerance."""
    pods = [pod(f"p{n}", address=f"10.0.0.{n}") for n in range(1, 11)]
    async with (
        running(ApiServer(service(replicas=10, autoscaling={"maxReplicas": 20}), *pods), certificates) as world,
        world.keda() as keda,
    ):
        world.in_flight |= {f"10.0.0.{n}": 16 if n < 10 else 0 for n in range(1, 11)}
        assert await keda.replicas() == 8.999


async def test_the_target_is_one_for_each_replica_and_needs_no_service(certificates: Path) -> None:
    async with running(ApiServer(), certificates) as world, world.keda() as keda:
        raw = await keda.call("GetMetricSpec", request("GetMetricSpec"))
        (spec,) = server.MESSAGES["GetMetricSpecResponse"].FromString(raw).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("replicas", 1, 1.0)


async def test_an_autoscaled_service_is_active_and_its_stream_stays_open(certificates: Path) -> None:
    async with running(ApiServer(service()), certificates) as world, world.keda() as keda:
        active = server.MESSAGES["IsActiveResponse"]
        assert active.FromString(await keda.call("IsActive", request("IsActive"))).result
        stream = keda.stream()
        assert active.FromString(await stream.read()).result
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(following := asyncio.ensure_future(stream.read())), 0.1)
        world.scaler.stop()
        assert await following is grpc.aio.EOF
        assert await stream.code() is CODE.OK


REFUSED = [
    (
        "no such service",
        request("GetMetrics", "other"),
        CODE.NOT_FOUND,
        "there is no LLMService ns/other that can be read",
    ),
    ("without autoscaling", request("GetMetrics", "fixed"), CODE.NOT_FOUND, "has no spec.scaling.autoscaling; set it"),
    ("being deleted", request("GetMetrics", "going"), CODE.NOT_FOUND, "is being deleted"),
    ("invalid bounds", request("GetMetrics", "wrong"), CODE.NOT_FOUND, "maxReplicas of LLMService ns/wrong is not"),
    ("invalid cron", request("GetMetrics", "cron"), CODE.NOT_FOUND, "'99 8 * * *' is not a schedule"),
    ("invalid zone", request("GetMetrics", "zone"), CODE.NOT_FOUND, "timeZone 'Nowhere/There' is not in"),
    ("another metric", request("GetMetrics", metric="cpu"), CODE.INVALID_ARGUMENT, "there is no metric 'cpu'"),
    ("no names", b"", CODE.INVALID_ARGUMENT, "there is no metric ''"),
    ("a name no object has", request("GetMetrics", "A/../b"), CODE.INVALID_ARGUMENT, "no valid namespace and name"),
    ("a name too long", request("GetMetrics", "a" * 254), CODE.INVALID_ARGUMENT, "no valid namespace and name"),
    ("no protobuf", b"\xff\xff\xff", CODE.INVALID_ARGUMENT, "is no GetMetricsRequest"),
    ("too large", b"\0" * 70_000, CODE.RESOURCE_EXHAUSTED, ""),
]


def scheduled(**entry: object) -> dict[str, object]:
    return {"maxReplicas": 3, "schedule": [{"start": "0 8 * * *", "end": "0 9 * * *", **entry}]}


async def test_refused_calls_have_a_code_and_a_remedy_and_never_a_number(certificates: Path) -> None:
    fixed = service("fixed")
    del fixed["spec"]["scaling"]["autoscaling"]
    api = ApiServer(
        service(),
        fixed,
        service("going", deletionTimestamp="2026-01-01T00:00:00Z"),
        service("wrong", autoscaling={"maxReplicas": 0}),
        service("cron", autoscaling=scheduled(start="99 8 * * *")),
        service("zone", autoscaling=scheduled(timeZone="Nowhere/There")),
    )
    async with running(api, certificates) as world, world.keda() as keda:
        for name, raw, code, message in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await keda.call("GetMetrics", raw)
            assert caught.value.code() is code, name
            assert message in (caught.value.details() or ""), name
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keda.stream("other").read()
        assert caught.value.code() is CODE.NOT_FOUND
        # KEDA takes this for a scaler without the method, and goes on with GetMetricSpec.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keda.call("StreamMetricSpec", request("IsActive"))
        assert caught.value.code() is CODE.UNIMPLEMENTED


async def test_nothing_is_answered_before_the_watches_are_synced(certificates: Path) -> None:
    api = ApiServer(service(), pod("a"))
    released = api.hold(LLMSERVICE.path(None))
    async with running(api, certificates, wait=False) as world, world.keda() as keda:
        for method in ("GetMetrics", "IsActive"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await keda.call(method, request(method))
            assert caught.value.code() is CODE.UNAVAILABLE
            assert "llmservices.llmservice.dev: not listed yet" in (caught.value.details() or "")
        assert not world.scaler.is_ready()
        released.set()
        await world.until(world.scaler.is_ready)
        world.in_flight["10.0.0.1"] = 1
        assert await keda.replicas() == 1


async def test_a_namespace_that_is_not_watched_is_refused(certificates: Path) -> None:
    api = ApiServer(service())
    async with running(api, certificates, namespaces=("ns",)) as world, world.keda() as keda:
        assert await keda.replicas() == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keda.replicas(namespace="elsewhere")
        assert caught.value.code() is CODE.NOT_FOUND
        assert "namespace elsewhere is not watched" in (caught.value.details() or "")


async def test_calls_at_the_same_time_and_shortly_after_share_one_read_of_each_pod(certificates: Path) -> None:
    api = ApiServer(service(replicas=2), pod("a", address="10.0.0.1"), pod("b", address="10.0.0.2"))
    async with running(api, certificates) as world, world.keda() as keda:
        world.in_flight |= {"10.0.0.1": 1, "10.0.0.2": 1}
        requests = len(api.requests)
        assert await asyncio.gather(*(keda.replicas() for _ in range(20))) == [1.0] * 20
        assert sorted(world.reads) == ["10.0.0.1", "10.0.0.2"]
        assert len(api.requests) == requests, "a call sends nothing to the API server"


async def test_the_trigger_s_metadata_changes_nothing(certificates: Path) -> None:
    """A tenant may write it into a ScaledObject."""
    async with running(ApiServer(service(), pod("a")), certificates) as world, world.keda() as keda:
        world.in_flight["10.0.0.1"] = 17
        forged = reference(concurrencyPerReplica="1", maxReplicas="1000")
        raw = server.MESSAGES["GetMetricsRequest"](scaledObjectRef=forged, metricName="replicas")
        answer = await keda.call("GetMetrics", raw.SerializeToString())
        (value,) = server.MESSAGES["GetMetricsResponse"].FromString(answer).metricValues
        assert value.metricValueFloat == 2


PARSERS: dict[str, Callable[[bytes], Key]] = {
    "GetMetrics": lambda raw: server.metrics_request(raw).key,
    "IsActive": server.scaled_object,
}


@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=200), st.integers(0, 40), st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_request_is_one_of_keda_s_or_invalid(method: str, noise: bytes, at: int, byte: int) -> None:
    valid = request(method)
    changed, messages = bytearray(valid), list[str]()
    changed[at % len(valid)] = byte
    for raw in (noise, valid + noise, bytes(changed)):
        try:
            key = PARSERS[method](raw)
        except server.InvalidRequest as error:
            messages.append(str(error))
            continue
        assert 0 < len(key.namespace) <= 63
        assert 0 < len(key.name) <= 253
    assert all(len(message) < 200 for message in messages)
