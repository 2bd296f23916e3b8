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

from kubeloop.bounded_yaml import NoYaml, load
from llmservice_api.constants import SERVICE_LABEL
from llmservice_runtime.bounded_json import clean, flag_object
from llmservice_runtime.contract import SERVER_CONTAINER

from llmservice_cli.api import Json, labels_of, name_of

from .facts import LONGEST, Check, Facts, Finding, not_known, ok, problem, warning

KIND = "EndpointPickerConfig"
LARGEST = 64 * 1024
"""Characters of a configuration."""
MOST_PLUGINS, MOST_NODES = 100, 20_000
_TOPIC = "kv@"
"""With which topics of events begin that name a replica."""
_PORT = 5557
"""At which llm-d's router asks each replica by default."""
_PRECISE = "precise-prefix-cache"
_EVENTS, _SHORTEST = "--kv-events-config", "--kv-e"
"""vLLM's flag, and its shortest abbreviation."""
_ANEW = "start the replicas anew with llmservice update, unless the first of spec.model.servedModelNames has an @"
_TRUE = ("true", "1", "on", "t", "yes", "y")


@dataclass(frozen=True, slots=True)
class Published:
    """What a replica hashes and publishes, by its own arguments."""

    block_size: int | None
    """Tokens; None: vLLM's own choice."""
    endpoint: str
    """Of its events, as vLLM names it; empty: it publishes none outside its pod."""
    topic: str
    is_by_argument: bool
    """Whether the service configures them with extraArgs, beside which an API server refuses the field."""

    @classmethod
    def of(cls, pod: Json, service: Json) -> Self:
        containers = (pod.get("spec") or {}).get("containers") or ()
        server: Json = next((each for each in containers if each.get("name") == SERVER_CONTAINER), {})
        arguments = (*map(str, server.get("args") or ()), "")
        size, events = dict(pairwise(arguments)).get("--block-size", ""), _events(arguments)
        is_on = str(events.get("enable_kv_cache_events")).lower() in _TRUE and events.get("publisher") != "null"
        endpoint = str(events.get("endpoint", f"tcp://*:{_PORT}"))
        extra = ((service.get("spec") or {}).get("runtime") or {}).get("extraArgs") or ()
        return cls(
            int(size) if size.isdecimal() and len(size) <= 7 else None,
            clean(endpoint[:LONGEST]) if is_on and endpoint.startswith("tcp://") else "",
            str(events.get("topic") or ""),
            any(map(_is_of_events, map(str, extra))),
        )

    @property
    def port(self) -> int | None:
        """At which whoever wants events connects; None: the replica itself connects to the endpoint."""
        _, _, port = self.endpoint.rpartition(":")
        is_bound = "*" in self.endpoint or "::" in self.endpoint
        return int(port) if is_bound and port.isdecimal() and len(port) <= 5 else None

    @property
    def remedy(self) -> str:
        """To publish them as a picker wants them."""
        instead = f"remove {_EVENTS} from spec.runtime.extraArgs, and " if self.is_by_argument else ""
        return f"{instead}set spec.batching.kvEvents.enabled: true and port: {_PORT}, which restarts the replicas"


def _events(arguments: Sequence[str]) -> Mapping[str, Any]:
    """vLLM's configuration of events: the last one that is whole, or the dotted keys, which vLLM puts behind it."""
    whole: Mapping[str, Any] = {}
    keys: dict[str, str] = {}
    for word, after in pairwise(arguments):
        flag, has_value, value = word.partition("=")
        key, value = flag.partition(".")[2], value if has_value else after
        if key and _is_of_events(word):
            keys[key] = value.strip('"')
        elif _is_of_events(word):
            whole = flag_object(value)
    return keys or whole


def _is_of_events(word: str) -> bool:
    """As vLLM reads it: with underscores, dotted, or abbreviated."""
    name = word.partition("=")[0].partition(".")[0].replace("_", "-")
    return name.startswith(_SHORTEST) and _EVENTS.startswith(name)


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
    differing = (each for plugin in plugins for each in _differing(plugin, Published.of(newest, service)))
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
    """Empty for what is no mapping."""
    if not isinstance(text, str) or KIND not in text or len(text) > LARGEST:
        return {}
    try:
        return _mapping(load(text, MOST_NODES))
    except NoYaml:  # the picker refuses it, and is not ready
        return {}


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
    if not published.endpoint:
        yield f"{kind} needs KV events, and the replicas publish none", published.remedy
        return
    does_ask = events.get("discoverPods") is not False
    if does_ask and published.port is None:
        yield f"{kind} asks each replica for KV events, and these connect to {published.endpoint}", published.remedy
        return
    if not does_ask and published.port is not None:
        yield (
            f"{kind} waits for replicas that connect to it, and these wait for it",
            "set its kvEventsConfig.discoverPods to true",
        )
        return
    socket = _number(_mapping(events.get("podDiscoveryConfig")).get("socketPort"), _PORT)
    if published.port not in (None, socket):
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
            published.remedy if published.is_by_argument else _ANEW,
        )


CHECKS = (
    Check(
        "endpoint pickers",
        "of services with routing.mode pool: the picker is ready, and follows the KV events that the replicas publish",
        ("services", "pods", "pickers"),
        pickers,
        True,
    ),
)
