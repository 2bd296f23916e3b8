"""The cache of projections: a key comes out only where what we know changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubeloop.informer import Cache, newer
from kubeloop.resources import Key


@dataclass(frozen=True)
class Facts:
    namespace: str
    name: str
    uid: str
    service: str | None
    value: str
    resource_version: str = field(compare=False)


def project(raw: Mapping[str, Any], known: object) -> Facts:
    metadata = raw["metadata"]
    service = metadata.get("labels", {}).get("service")
    return Facts(
        metadata["namespace"], metadata["name"], metadata["uid"], service, raw["value"], metadata["resourceVersion"]
    )


def pod(version: int, value: str = "x", *, uid: str = "u1", service: str | None = "chat", name: str = "p") -> Any:
    labels = {"service": service} if service else {}
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "value": value}


CHAT = Key("ns", "chat")
OTHER = Key("ns", "other")


@pytest.mark.parametrize(
    ("first", "second", "expected", "kept"),
    [
        pytest.param(pod(1), pod(2), (), "x", id="only the version moved"),
        pytest.param(pod(1), pod(2, "y"), (CHAT,), "y", id="a value changed"),
        pytest.param(pod(5, "new"), pod(4, "old"), (), "new", id="a late event of the past is ignored"),
        pytest.param(pod(9), pod(10, "y"), (CHAT,), "y", id="versions are numbers, not text"),
        pytest.param(pod(5), pod(4, uid="u2"), (CHAT,), "x", id="another object of that name"),
        pytest.param(pod(1), pod(2, service="other"), (CHAT, OTHER), "x", id="moved to another service"),
        pytest.param(pod(1), pod(2, service=None), (CHAT,), None, id="lost its label"),
    ],
)
def test_update(first: Any, second: Any, expected: tuple[Key, ...], kept: str | None) -> None:
    cache = Cache({"Pod": project})
    assert cache.update("Pod", first) == (CHAT,)
    assert cache.update("Pod", second) == expected
    facts = cache.get("Pod", "ns", "p")
    assert (facts.value if facts else None) == kept


def test_a_projection_is_made_with_what_is_known_or_expected_of_the_object() -> None:
    seen: list[object] = []

    def projected(raw: Mapping[str, Any], known: object) -> Facts:
        seen.append(known)
        return project(raw, known)

    cache, written = Cache({"Pod": projected}), project(pod(2, "written"), None)
    cache.update("Pod", pod(1))
    with cache.expecting("Pod", written):
        cache.update("Pod", pod(2, "written"))
    cache.update("Pod", pod(3, "y"))
    assert seen == [None, written, written]


def test_objects_are_found_by_service_and_by_namespace_until_they_are_removed() -> None:
    cache = Cache({"Pod": project})
    cache.update("Pod", pod(1))
    cache.update("Pod", pod(7))
    assert cache.get("Pod", "ns", "p").resource_version == "7", "without a key"
    cache.update("Pod", pod(2, name="q", uid="u2"))
    assert cache.seen("Pod", "ns") == {("ns", "p"): ("u1", "7"), ("ns", "q"): ("u2", "2")}
    assert cache.seen("Pod", "elsewhere") == {}
    assert cache.remove("Pod", "ns", "p", "another") == (), "the late deletion of a former object"
    assert cache.remove("Pod", "ns", "p", "u1") == (CHAT,)
    assert list(cache.of_service(CHAT)["Pod"]) == ["q"]
    assert cache.remove("Pod", "ns", "q", "u2") == (CHAT,)
    assert (cache.of_service(CHAT), list(cache.all_keys())) == ({}, [])
    assert cache.remove("Pod", "ns", "q", "u2") == (), "unknown"
    assert cache.update("Pod", pod(1, service=None)) == ()
    assert cache.get("Pod", "ns", "p") is None, "nobody's"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("x", "9", False), ("9", "x", False)],
)
def test_newer(one: str, other: str, expected: bool) -> None:
    assert newer(one, other) is expected


@pytest.mark.parametrize(
    ("comes", "news"),
    [
        pytest.param(pod(2, "written"), (), id="what was written"),
        pytest.param(pod(3, "written"), (), id="the same, later"),
        pytest.param(pod(2, "written and edited"), (CHAT,), id="with somebody's edit in it"),
        pytest.param(pod(2, "written", name="q", uid="u2"), (CHAT,), id="another object"),
    ],
)
def test_what_is_expected_changes_nothing(comes: Any, news: tuple[Key, ...]) -> None:
    cache = Cache({"Pod": project})
    cache.update("Pod", pod(1))
    with cache.expecting("Pod", project(pod(1, "written"), None)):
        assert cache.update("Pod", comes) == news
    later = comes["metadata"]["name"], comes["metadata"]["uid"]
    assert cache.update("Pod", pod(7, "x", name=later[0], uid=later[1])) == (CHAT,)
    assert cache.update("Pod", pod(8, "written", name=later[0], uid=later[1])) == (CHAT,)
