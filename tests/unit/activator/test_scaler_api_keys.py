"""Secrets with API keys: what is of use, what is said where nothing is, and that no key is ever said."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kubeloop.errors import Forbidden, KubeError, ServerError
from kubeloop.resources import Key
from llmservice_activator.api_keys import CACHE_SECONDS, RETRY_SECONDS, ApiKeys, KeyReader, keys_of
from llmservice_api.base import SecretKeyRef

from tests.unit.activator.test_scaler_targets import secret
from tests.unit.api_server import ApiServer, Connection

CHAT = Key("ns", "chat")
REF = SecretKeyRef(name="keys", key="api-key")
FORBIDDEN = (
    'secrets "keys" is forbidden: User "system:serviceaccount:llms:llmservice-activator" cannot get resource "secrets" '
    'in API group "" in the namespace "ns"'
)


class World:
    """A reader of the simulated API server's Secrets."""

    def __init__(self, *secrets: dict[str, Any]) -> None:
        self.api = ApiServer(*secrets)
        self.time, self.changed = 100.0, 0
        self.reader = KeyReader(Connection(self.api), self.change, clock=lambda: self.time)

    def change(self, key: Key) -> None:
        self.changed += 1

    async def read(self, ref: SecretKeyRef = REF) -> ApiKeys:
        """What is found after everything that was wanted is read."""
        self.reader.get(CHAT, ref)
        self.reader.request(CHAT)
        task = asyncio.ensure_future(self.reader.run())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self.reader.get(CHAT, ref)


async def test_a_key_that_is_not_known_has_them_read_once_a_minute() -> None:
    """Whatever number of clients ask, each waits for the one read."""
    world = World(secret(b"one"))
    await world.read()
    task = asyncio.ensure_future(world.reader.run())
    world.api.put(secret(b"two"))
    assert await world.reader.renewed(CHAT) == frozenset({"one"}), "they are not a minute old"
    world.time += CACHE_SECONDS
    asked = await asyncio.gather(*(world.reader.renewed(CHAT) for _ in range(100)))
    assert set(asked) == {frozenset({"two"})}
    assert world.api.calls.count("get Secret") == 2
    assert await world.reader.renewed(Key("ns", "other")) == frozenset()
    task.cancel()


async def test_an_api_server_that_does_not_answer_keeps_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmservice_activator.api_keys.READ_SECONDS", 0.01)
    world = World(secret(b"one"))
    await world.read()
    world.time += CACHE_SECONDS
    assert await world.reader.renewed(CHAT) == frozenset({"one"}), "nobody reads"


PROBLEMS: list[tuple[str, list[dict[str, Any]], KubeError | None, str]] = [
    ("no Secret", [], None, "there is no Secret keys; create it with API keys in api-key"),
    ("no key", [secret(key="other")], None, "Secret keys has no key api-key; put the API keys there, one a line"),
    ("empty", [secret(b" \n\n")], None, "key api-key of Secret keys is of no use: it is empty; correct it"),
    ("no text", [secret(b"\xff\xfe")], None, "key api-key of Secret keys is of no use: it is not UTF-8; correct it"),
    ("too long", [secret(b"a" * 65537)], None, "it has more than 65536 bytes"),
    ("no data", [{**secret(), "data": None}], None, "Secret keys has no key api-key"),
    ("no base64", [{**secret(), "data": {"api-key": "?"}}], None, "it is not base64"),
    (
        "no right",
        [secret()],
        Forbidden(FORBIDDEN, code=403),
        "ServiceAccount llmservice-activator of namespace llms may not get Secret keys, so requests cannot be checked "
        "while no replica serves; grant it with the Role that `llmservice init` writes, see "
        "docs/serving/scale-to-zero.md",
    ),
    ("no answer", [secret()], ServerError("etcd is away", code=500), "Secret keys cannot be read: etcd is away"),
]


@pytest.mark.parametrize(("name", "secrets", "error", "problem"), PROBLEMS)
async def test_without_usable_keys_it_says_why_and_what_to_do(
    name: str, secrets: list[dict[str, Any]], error: KubeError | None, problem: str
) -> None:
    world = World(*secrets)
    world.api.fails["get Secret"] = [error] if error else []
    found = await world.read()
    assert found.keys == frozenset()
    assert problem in found.problem
    assert world.changed == 1
    # It is looked at again soon, and told where it is mended.
    world.api.put(secret())
    world.time += RETRY_SECONDS
    assert (await world.read()).keys == {"one", "two"}
    assert world.changed == 2


async def test_keys_are_kept_for_a_minute_and_through_an_outage_of_the_api_server() -> None:
    world = World(secret())
    assert (await world.read()).keys == {"one", "two"}
    world.api.put(secret(b"three"))
    world.time += CACHE_SECONDS - 1
    assert (await world.read()).keys == {"one", "two"}
    world.time += 1
    world.api.fails["get Secret"] = [ServerError("away", code=500)]
    assert await world.read() == ApiKeys(frozenset({"one", "two"}), "")
    world.time += CACHE_SECONDS
    assert (await world.read()).keys == {"three"}
    # A right that was taken away holds at once.
    world.time += CACHE_SECONDS
    world.api.fails["get Secret"] = [Forbidden(FORBIDDEN, code=403)]
    assert (await world.read()).keys == frozenset()


async def test_another_reference_is_read_before_anything_of_it_holds() -> None:
    world = World(secret(), {**secret(b"four"), "metadata": {"namespace": "ns", "name": "more", "uid": "u"}})
    await world.read()
    other = SecretKeyRef(name="more", key="api-key")
    assert world.reader.get(CHAT, other).keys == frozenset()
    assert (await world.read(other)).keys == {"four"}
    world.reader.forget(CHAT)
    assert world.reader.get(CHAT, REF).keys == frozenset()


async def test_no_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(secret(b"sk-secret"))
    await world.read()
    world.api.put(secret(b"sk-secret\n" * 9000))
    world.time += CACHE_SECONDS
    assert (await world.read()).problem
    assert "sk-secret" not in caplog.text
    assert "of no use" in caplog.text


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
)


@given(some.fixed_dictionaries({"data": JSON | some.fixed_dictionaries({"api-key": JSON})}) | some.just({}))
def test_any_secret_gives_keys_or_a_problem(found: dict[str, Any]) -> None:
    result = keys_of(found, REF)
    assert bool(result.keys) != bool(result.problem)


@given(some.binary(max_size=200))
def test_any_value_gives_keys_that_a_server_has_too_or_a_problem(text: bytes) -> None:
    result = keys_of({"data": {"api-key": base64.b64encode(text).decode()}}, REF)
    assert bool(result.keys) != bool(result.problem)
    lines = [line.strip() for line in text.splitlines()]
    assert all(key.encode() in lines for key in result.keys)
