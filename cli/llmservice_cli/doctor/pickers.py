"""Endpoint pickers of the namespace's pools: whether they are there, and whether they follow the replicas' KV events.

A picker that waits for events which nobody sends, or counts other blocks, chooses as if by chance and does not say so.
What is compared is the configuration of llm-d's `precise-prefix-cache-*` plugins. The inference extension's own picker
finds what it needs in the replicas' metrics, so that there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import yaml
from llmservice_api.constants import SERVICE_LABEL
from llmservice_runtime.bounded_json import clean, flag_object
from llmservice_runtime.contract import SERVER_CONTAINER

from llmservice_cli.api import Json, labels_of, name_of

from .facts import LONGEST, Check, Facts, Finding, not_known, ok, problem, warning

KIND = "EndpointPickerConfig"
LARGEST = 64 * 1024
"""Characters of a configuration."""
MOST_PLUGINS = 100
_TOPIC = "kv@"
"""With which topics of events begin that name a replica."""
_PORT = 5557
"""At which llm-d's router asks each replica by default."""
_PRECISE = "precise-prefix-cache"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Published:
    """What a replica hashes and publishes, by its own arguments."""

    block_size: int | None
    """Tokens; None: vLLM's own choice."""
    port: int | None
    """Of its events; None: it publishes none."""
    topic: str

    @classmethod
    def of(cls, pod: Json) -> Self:
        containers = (pod.get("spec") or {}).get("containers") or ()
        server: Json = next((each for each in containers if each.get("name") == SERVER_CONTAINER), {})
        given = dict(pairwise(map(str, server.get("args") or ())))
        size, events = given.get("--block-size", ""), flag_object(given.get("--kv-events-config", ""))
        _, _, port = str(events.get("endpoint") or "").rpartition("tcp://*:")
        published = int(port) if port.isdecimal() and len(port) <= 5 else None
        block_size = int(size) if size.isdecimal() and len(size) <= 7 else None
        return cls(block_size, published, str(events.get("topic") or ""))


def pickers(facts: Facts) -> Iterator[Finding]:
    for each in facts.pickers:
        yield _of_picker(each, facts)
        yield from _compared(each, facts)
    if not facts.pickers:
        yield ok(f"no LLMService in {facts.namespace} is served as a pool")


def _where(found: Json) -> str:
    return f"the endpoint picker {clean(found['name'])[:LONGEST]} of {name_of(found['service'])}"


def _of_picker(found: Json, facts: Facts) -> Finding:
    where, unread, port = _where(found), found["unread"], found["port"]
    if found["address"] is None:
        if unread is not None:
            return not_known(f"{where}: {unread.why}", unread.remedy)
        return problem(
            f"{where} is not there: the Gateway chooses without it, or answers 500",
            "make one with llmservice render -f FILE --for epp --image IMAGE, or name yours in"
            " spec.routing.endpointPicker.name",
        )
    spec = found["address"].get("spec") or {}
    if port not in {each.get("port") for each in spec.get("ports") or ()}:
        return problem(
            f"{where} has no port {port}: the Gateway chooses without it, or answers 500",
            "set spec.routing.endpointPicker.port to the one of the Service",
        )
    if unread is None and spec.get("selector") and not any(map(_is_ready, found["pods"])):
        return problem(
            f"{where} has no ready pod: the Gateway chooses without it, or answers 500",
            f"see why with kubectl get pods -n {facts.namespace}; the selector is that of the Service",
        )
    return ok(f"{where} is there")


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any((each.get("type"), each.get("status")) == ("Ready", "True") for each in conditions)


def _compared(found: Json, facts: Facts) -> Iterator[Finding]:
    """Its configuration with the newest replica; nothing where either is not there."""
    service, unread = found["service"], found["unread"]
    if unread is not None and found["address"] is not None:
        yield not_known(f"{_where(found)}: its configuration: {unread.why}", unread.remedy)
        return
    replicas = [pod for pod in facts.pods if labels_of(pod).get(SERVICE_LABEL) == service["metadata"]["name"]]
    if not replicas:
        return
    newest = max(replicas, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    plugins = [plugin for config in _configurations(found) for plugin in _plugins(config)]
    differing = (each for plugin in plugins for each in _differing(plugin, Published.of(newest)))
    for what, remedy in dict.fromkeys(differing):
        yield warning(f"{_where(found)}: {what}", remedy)


def _configurations(found: Json) -> Iterator[Mapping[str, Any]]:
    """Of its arguments, and of the ConfigMaps that its pods mount."""
    containers = [one for pod in found["pods"][:1] for one in (pod.get("spec") or {}).get("containers") or ()]
    texts = [text for each in containers for text in _texts(each.get("args") or ())]
    texts += [text for each in found["configs"] for text in (each.get("data") or {}).values()]
    for text in texts:
        content = _content(text)
        if content.get("kind") == KIND:
            yield content


def _texts(arguments: Sequence[str]) -> Iterator[str]:
    for word, after in pairwise((*map(str, arguments), "")):
        flag, has_value, value = word.lstrip("-").partition("=")
        if word.startswith("-") and flag == "config-text":
            yield value if has_value else after


def _content(text: object) -> Mapping[str, Any]:
    """Empty for what is no mapping, and for YAML with aliases, which may stand for very much."""
    if not isinstance(text, str) or KIND not in text or len(text) > LARGEST:
        return {}
    try:
        if any(isinstance(each, yaml.AliasEvent) for each in yaml.parse(text, _LOADER)):
            return {}
        content = yaml.load(text, _LOADER)
    except (yaml.YAMLError, RecursionError, ValueError):  # the picker refuses it, and is not ready
        return {}
    return _mapping(content)


def _plugins(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Type and parameters of each."""
    listed = config.get("plugins")
    for each in listed[:MOST_PLUGINS] if isinstance(listed, list) else ():
        kind = _mapping(each).get("type")
        if isinstance(kind, str):
            yield clean(kind[:100]), _mapping(_mapping(each).get("parameters"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object, otherwise: int | None = None) -> int | None:
    """A port or a size; `otherwise` for what is none."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 20
    return value if is_one else otherwise  # type: ignore[return-value]  # mypy does not follow is_one


def _differing(plugin: tuple[str, Mapping[str, Any]], published: Published) -> Iterator[tuple[str, str]]:
    """What a plugin waits for and the replicas do not send; with the remedy."""
    kind, parameters = plugin
    if not kind.startswith(_PRECISE):
        return
    within = parameters if "tokenProcessorConfig" in parameters else _mapping(parameters.get("indexerConfig"))
    tokens, events = _mapping(within.get("tokenProcessorConfig")), _mapping(parameters.get("kvEventsConfig"))
    size = _number(tokens.get("blockSizeTokens", tokens.get("blockSize")))
    if size is not None and published.block_size not in (None, size):
        yield (
            f"{kind} counts blocks of {size} tokens, and the replicas' have {published.block_size}: many versions of it"
            " find no prefix then",
            f"set its tokenProcessorConfig to {published.block_size}, or spec.batching.blockSize to {size}, which"
            " restarts the replicas",
        )
    if published.port is None:
        yield (
            f"{kind} needs KV events, and the replicas publish none",
            f"set spec.batching.kvEvents.enabled: true and port: {_PORT}, which restarts the replicas",
        )
        return
    if events.get("discoverPods") is False:
        yield (
            f"{kind} waits for replicas that connect to it, and these wait for it",
            "set its kvEventsConfig.discoverPods to true",
        )
        return
    socket = _number(_mapping(events.get("podDiscoveryConfig")).get("socketPort"), _PORT)
    if socket != published.port:
        yield (
            f"{kind} asks for KV events at port {socket}, and the replicas publish them at {published.port}",
            f"set its kvEventsConfig.podDiscoveryConfig.socketPort to {published.port}",
        )
    topic = events.get("topicFilter")
    if isinstance(topic, str) and not _TOPIC.startswith(topic):
        yield (
            f"{kind} takes events whose topic begins with {clean(topic[:40])!r}, and the replicas' with {_TOPIC!r}",
            f'set its kvEventsConfig.topicFilter to "{_TOPIC}"',
        )
    if not published.topic.startswith(_TOPIC):
        yield (
            f"{kind} passes over the replicas' events, whose topic does not name the replica",
            "start the replicas anew with llmservice update, unless the first of spec.model.servedModelNames has an @",
        )


CHECKS = (
    Check(
        "endpoint pickers",
        "of services with routing.mode pool: the picker is ready, and follows the KV events that the replicas publish",
        ("services", "pods"),
        pickers,
        True,
    ),
)
