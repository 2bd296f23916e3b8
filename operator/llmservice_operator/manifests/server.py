"""The server container: image, vLLM's command line, CPU, memory, accelerators and shared memory; and the nodes where
its pod may run: acceptable GPU products, the accelerator's taint, and the user's rules.

A rule about other pods (affinity, spread) without a selector would match none; it gets that of the service's own pods.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from llmservice_api.constants import GROUP_INDEX_LABEL, UPDATE_REQUESTED_ANNOTATION
from llmservice_api.flags import FLAGS
from llmservice_api.service import LLMService
from llmservice_api.spec import ANY_DOMAIN, LLMServiceSpec
from llmservice_planner.cluster import ARCHITECTURE, IMAGES
from llmservice_planner.quantity import GIB, add_memory, amount, count, gibibytes, same_amount
from llmservice_planner.requests import cpu_offload_gib, kv_offloading_gib
from llmservice_planner.room import slice_label
from llmservice_planner.versions import image_version
from llmservice_runtime import contract
from llmservice_runtime.contract import (
    ADAPTERS_DIR,
    ADAPTERS_KEY,
    API_KEYS_FILE,
    CHAT_TEMPLATE_DIR,
    DRAIN_MIDDLEWARE,
    HTTP_PORT,
    POD_IP_ENV,
    START_CACHE_DIR,
    START_SECONDS,
)
from llmservice_runtime.credentials import is_credential
from llmservice_runtime.options import ServeOptions
from llmservice_vllm.flags import Flag
from llmservice_vllm.versions import flag_table_or_default

from llmservice_operator.manifests import network
from llmservice_operator.manifests.meta import Manifest, selector
from llmservice_operator.manifests.revision import NO_CHOICES, RevisionChoices, revision_key
from llmservice_operator.manifests.settings import DEFAULT_VLLM_VERSION, Settings
from llmservice_operator.manifests.sources import draft_path, fetched, model_path

CHAT_TEMPLATE_FILE = f"{CHAT_TEMPLATE_DIR}/template.jinja"
# Matches no host, since vLLM compares names in lower case; an empty list would allow all. vLLM's refusals then name the
# field.
NO_MEDIA_DOMAIN = "spec.multimodal.allowedMediaDomains"
# `::` listens on IPv6 and IPv4; the supervisor replaces it on a node without IPv6. The supervisor waits for streams
# before it stops vLLM. With a timeout of 0 vLLM ends the remaining ones at once, with finish_reason "abort", and exits
# in half a second.
_OWN = (
    *("--host", "::", "--port", str(HTTP_PORT), "--middleware", DRAIN_MIDDLEWARE, "--shutdown-timeout", "0"),
    *("--disable-access-log-for-endpoints", "/health,/metrics"),
)


def vllm_arguments(llm: LLMService, version: str, chosen: RevisionChoices = NO_CHOICES) -> tuple[str, ...]:
    """vLLM's arguments after the program, in a fixed order: flags of fields, the operator's own, extraArgs.

    Values that are vLLM's defaults are left out.
    """
    computed = _computed(llm, chosen)
    values: dict[str, Any] = {}
    for flag in FLAGS:
        value = computed[flag.name] if flag.name in computed else flag.read(llm.spec)
        name, _, key = flag.name.partition(".")
        if key:
            values.setdefault(name, {})[key] = value
        else:
            values[name] = value
    spellings = flag_table_or_default(version).by_spelling
    typed = (token for name, value in values.items() for token in _tokens(name, value, spellings.get(name)))
    return (*typed, *_OWN, *llm.spec.runtime.extra_args)


def _tokens(name: str, value: Any, flag: Flag | None) -> Iterator[str]:
    """One flag: nothing for None and empty values, the negation for False, JSON for a mapping, else its value.

    `flag` is of the vLLM version; a flag that the version lacks is refused elsewhere (llmservice_planner/versions.py).
    """
    if isinstance(value, Mapping):
        # Sorted, so that the order of keys in the spec does not change the template.
        given = {key: item for key, item in value.items() if item is not None}
        value = json.dumps(given, sort_keys=True, separators=(",", ":")) if given else None
    if isinstance(value, bool):
        yield name if value else next(iter(flag.negated if flag else ()), f"--no-{name[2:]}")
    elif value not in (None, ()):
        yield name
        yield from value if isinstance(value, tuple) else (str(value),)


def _computed(llm: LLMService, chosen: RevisionChoices) -> dict[str, Any]:
    """Values that differ from their field's, by flag."""
    spec = llm.spec
    return {
        "--model": model_path(spec),
        "--served-model-name": llm.served_model_names,
        "--chat-template": None if spec.model.chat_template is None else CHAT_TEMPLATE_FILE,
        "--dtype": None if spec.precision.compute_dtype == "auto" else spec.precision.compute_dtype,
        "--quantization": spec.precision.method,
        "--max-model-len": max_model_len(llm, chosen),
        "--kv-offloading-size": _kv_offloading_size(spec),
        "--compilation-config.mode": spec.compilation.mode and constant(spec.compilation.mode),
        "--compilation-config.cudagraph_mode": spec.compilation.cuda_graphs and constant(spec.compilation.cuda_graphs),
        "--speculative-config": _speculation(spec),
        "--enable-lora": spec.is_lora_on or None,
        "--override-generation-config": _generation_defaults(spec),
        "--allowed-media-domains": _media_domains(spec),
        **_kv_events(llm),
    }


def _kv_events(llm: LLMService) -> Mapping[str, object]:
    """Without a port vLLM, which has to publish somewhere, does so to itself (zmq's inproc), and the latest events are
    asked for on the pod's loopback. With one, the topic names the replica and the model as llm-d's router reads them
    (three parts, parted by @): it passes over events without."""
    events = llm.spec.batching.kv_events
    flag, names = "--kv-events-config", ("enable_kv_cache_events", "endpoint", "replay_endpoint", "topic")
    if events is None or not events.enabled:
        return dict.fromkeys(f"{flag}.{name}" for name in names)
    endpoint, host, topic = "inproc://kv-events", "127.0.0.1", None
    if events.port is not None:
        endpoint, host, model = f"tcp://*:{events.port}", "*", llm.served_model_names[0]
        topic = None if "@" in model else f"kv@$({POD_IP_ENV}):{HTTP_PORT}@{model}"
    values = (True, endpoint, f"tcp://{host}:{events.replay_port}", topic)
    given = dict(zip((f"{flag}.{name}" for name in names), values, strict=True))
    return given | {"--prefix-caching-hash-algo": llm.spec.batching.prefix_caching_hash_algo or "sha256_cbor"}


def max_model_len(llm: LLMService, chosen: RevisionChoices) -> int | Literal["auto"] | None:
    """Tokens; `auto` is the plan's value, or vLLM's `auto` without a plan."""
    length = llm.spec.batching.max_model_len
    return chosen.max_model_len or length if length == "auto" else length


def _kv_offloading_size(spec: LLMServiceSpec) -> str | None:
    """GiB, without trailing zeros."""
    size = spec.batching.kv_offloading_size
    return None if size is None else repr(gibibytes(size)).removesuffix(".0")


def snake(word: str) -> str:
    """fullDecodeOnly as full_decode_only."""
    return re.sub("([A-Z])", r"_\1", word).lower()


def constant(word: str) -> str:
    """fullDecodeOnly as FULL_DECODE_ONLY: a member of a vLLM enumeration."""
    return snake(word).upper()


def _speculation(spec: LLMServiceSpec) -> Mapping[str, object] | None:
    section = spec.speculative_decoding
    if section is None:
        return None
    return dict(section) | {"method": snake(section.method), "model": draft_path(spec)}


def _generation_defaults(spec: LLMServiceSpec) -> Mapping[str, object]:
    """With the names of generation_config.json."""
    defaults = dict(spec.generation.defaults)
    return defaults | {"max_new_tokens": defaults.pop("max_tokens")}


def _media_domains(spec: LLMServiceSpec) -> tuple[str, ...] | None:
    """None for every host, which is vLLM's default; the operator's default allows none."""
    domains = spec.multimodal.allowed_media_domains
    return None if ANY_DOMAIN in domains else domains or (NO_MEDIA_DOMAIN,)


def serve_options(llm: LLMService, settings: Settings, chosen: RevisionChoices = NO_CHOICES) -> ServeOptions:
    """Options of the supervisor."""
    start = chosen.start or {}
    extension, is_group = llm.spec.context_extension, llm.spec.parallelism.node_count > 1
    return ServeOptions(
        accelerator=llm.spec.accelerator.type,
        expected_version=vllm_version(llm, settings),
        weights=llm.spec.precision.weights,
        drain_seconds=llm.spec.drain.timeout_seconds,
        start_seconds=start.get("budgetSeconds", START_SECONDS),
        usual_seconds=start.get("usualSeconds", 0),
        start_cache=ServeOptions.start_cache if llm.spec.start_cache is None else START_CACHE_DIR,
        revision_key="" if llm.spec.start_cache is None and not is_group else revision_key(llm.spec),
        fetch=tuple(f"{name}={uri}" for name, uri in fetched(llm.spec).items()),
        context_extension=None if extension is None else extension.argument,
        adapters_file=adapters_file(llm.spec),
        api_keys_file=None if llm.spec.endpoint.api_key_secret_ref is None else API_KEYS_FILE,
        nodes=llm.spec.parallelism.node_count,
        data_parallel_mode=llm.spec.parallelism.data_parallel_mode,
        keep_variable=tuple(variable["name"] for variable in llm.spec.runtime.env if is_credential(variable["name"])),
    )


def adapters_file(spec: LLMServiceSpec) -> str | None:
    """The mounted list of adapters; None without LoRA."""
    return f"{ADAPTERS_DIR}/{ADAPTERS_KEY}" if spec.is_lora_on else None


def image(llm: LLMService, settings: Settings) -> str | None:
    """The server's image; None if neither the spec nor the settings name one."""
    if llm.spec.runtime.image is not None:
        return llm.spec.runtime.image
    return {"nvidia": settings.default_gpu_image, "amd": settings.default_amd_image, "cpu": settings.default_cpu_image}[
        llm.spec.accelerator.type
    ]


def vllm_version(llm: LLMService, settings: Settings) -> str:
    """spec.runtime.version, else that of the image's tag, else the default: selects the flag table."""
    if llm.spec.runtime.version is not None:
        return llm.spec.runtime.version.removeprefix("v")
    return image_version(image(llm, settings) or "") or DEFAULT_VLLM_VERSION


Resources = dict[str, dict[str, str]]

_INIT_LIMITS = {"cpu": "1", "memory": "128Mi"}
INSPECT_LIMITS = {"cpu": "1", "memory": "512Mi"}
"""For the headers of a model of hundreds of shards, several at once."""
_FETCH_MEMORY = "128Mi"
"""Minimum request of the fetch container."""
_MOST_KV_CACHE_GIB = 2**20
"""A PiB: more than any machine has; sums are exact."""
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""Of whole GPUs, by accelerator type."""


def accelerator_resource(llm: LLMService) -> str | None:
    """The extended resource of one accelerator; None on CPUs, and for devices of claims."""
    accelerator = llm.spec.accelerator
    if accelerator.has_claims:
        return None
    return accelerator.resource_name or RESOURCES.get(accelerator.type)


def shared_memory_gib(llm: LLMService, settings: Settings) -> int:
    """Size of /dev/shm, which is 64 MiB by default; 0 where that is enough.

    Ranks of one model exchange tensors through it. On CPUs vLLM's engine always has a separate worker process, which
    needs 160 MiB at least. vLLM keeps offloaded KV cache there, in a file that all ranks map.
    """
    offloaded = offloaded_gib(llm)
    asked = network.shared_memory_gib(llm)
    if asked is not None:
        return asked + offloaded
    if llm.spec.parallelism.accelerators_of_node > 1:
        return settings.shared_memory_gib + offloaded
    return offloaded + (1 if llm.spec.accelerator.type == "cpu" or offloaded else 0)


def offloaded_gib(llm: LLMService) -> int:
    """KV cache in the node's memory, rounded up; LMCache keeps its own elsewhere."""
    return math.ceil(kv_offloading_gib(llm.spec))


def server_resources(llm: LLMService, settings: Settings, host_memory_gib: int = 0) -> Resources:
    """Resources of the server; requests are always set. `host_memory_gib`: memory that vLLM pins by the plan, which may
    exceed the spec's. The shared-memory volume is added to the server's memory."""
    given = llm.spec.runtime.resources
    limits = {key: str(value) for key, value in (given.get("limits") or {}).items()} | network.rdma_limits(llm)
    requests = {key: str(value) for key, value in (given.get("requests") or {}).items()}
    defaults = _default_requests(llm, settings, host_memory_gib)
    for name, default in defaults.items():
        requests.setdefault(name, limits.get(name) or default)
    _add_shared_memory(requests, limits, shared_memory_gib(llm, settings))
    resource = accelerator_resource(llm)
    if resource is not None:
        limits[resource] = str(llm.spec.parallelism.accelerators_of_node)
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _default_requests(llm: LLMService, settings: Settings, host_memory_gib: int) -> dict[str, str]:
    gpus = llm.spec.parallelism.accelerators_of_node
    if llm.spec.accelerator.type == "cpu":
        memory = settings.cpu_only_memory_gib * gpus + cpu_kv_cache_gib(llm, settings) - settings.cpu_kv_cache_gib
        return {"cpu": settings.cpu_only_cpu, "memory": f"{memory}Gi"}
    asked = offloaded_gib(llm) + math.ceil(cpu_offload_gib(llm.spec, vllm_version(llm, settings)) * gpus)
    memory = settings.memory_gib_per_gpu * gpus + max(asked, host_memory_gib)
    return {"cpu": str(settings.cpu_per_gpu * gpus), "memory": f"{memory}Gi"}


def _add_shared_memory(requests: dict[str, str], limits: dict[str, str], gib: int) -> None:
    """Add the memory volume to the limit, against which it counts; Guaranteed pods stay Guaranteed."""
    limit = limits.get("memory")
    if limit is None or gib == 0:
        return
    if same_amount(limit, requests["memory"]):
        requests["memory"] = add_memory(limit, gib)
    limits["memory"] = add_memory(limit, gib)


def helper_requests(settings: Settings) -> dict[str, str]:
    """Requests of each container beside the server."""
    return {"cpu": settings.helper_cpu, "memory": settings.helper_memory}


def helper_resources(settings: Settings, limits: dict[str, str]) -> Resources:
    """Resources of a short-lived container of the operator's; `limits` are raised to its requests."""
    requests = helper_requests(settings)
    return {"requests": requests, "limits": {name: _larger(value, requests[name]) for name, value in limits.items()}}


def _larger(one: str, other: str) -> str:
    return one if amount(one) >= amount(other) else other


def init_resources(server: Resources, settings: Settings) -> Resources:
    """Resources of the container that copies the supervisor.

    Requests equal limits if the server's do: a pod is Guaranteed only if all of its containers are.
    """
    requests, limits = server["requests"], server.get("limits", {})
    is_guaranteed = all(name in limits and same_amount(limits[name], requests[name]) for name in ("cpu", "memory"))
    own = helper_resources(settings, _INIT_LIMITS)
    return {"requests": own["limits"], "limits": own["limits"]} if is_guaranteed else own


def fetch_resources(settings: Settings) -> Resources:
    """Resources of the fetch container, which runs as long as the server.

    Its requests stay small, also where the server is Guaranteed: the pod is then Burstable, and still fits its node.
    """
    found = helper_resources(settings, {"cpu": settings.fetch_cpu, "memory": f"{settings.fetch_memory_gib}Gi"})
    requests = found["requests"]
    return found | {"requests": requests | {"memory": _larger(requests["memory"], _FETCH_MEMORY)}}


def helpers(settings: Settings) -> dict[str, Resources]:
    """Resources of each container of the operator's, by name."""
    return {
        contract.RUNTIME_CONTAINER: helper_resources(settings, _INIT_LIMITS),
        contract.FETCH_CONTAINER: fetch_resources(settings),
        contract.INSPECT_CONTAINER: helper_resources(settings, INSPECT_LIMITS),
    }


def cpu_kv_cache_gib(llm: LLMService, settings: Settings) -> int:
    """GiB of KV cache on CPUs, a fixed integer: accelerator.memory, if set."""
    memory = llm.spec.accelerator.memory
    return settings.cpu_kv_cache_gib if memory is None else max(1, int(amount(memory) / GIB))


def effective_cpu_kv_cache_gib(llm: LLMService, settings: Settings) -> int:
    """GiB that vLLM reads from its environment: the user's variable, else the operator's."""
    for variable in llm.spec.runtime.env:
        stated = count(str(variable.get("value", "")), _MOST_KV_CACHE_GIB)
        if variable["name"] == "VLLM_CPU_KVCACHE_SPACE" and stated is not None:
            return stated
    return cpu_kv_cache_gib(llm, settings)


def with_requests(container: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A user's container with requests for CPU and memory, which quotas require of every container."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = {name: limits.get(name, value) for name, value in helper_requests(settings).items()}
    return container | {"resources": resources | {"requests": requests | (resources.get("requests") or {})}}


_PRODUCT_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}


def tolerations(llm: LLMService) -> list[dict[str, Any]]:
    """GPU nodes usually have a taint named after their resource, or after their vendor's GPUs."""
    keys = dict.fromkeys(filter(None, (accelerator_resource(llm), RESOURCES.get(llm.spec.accelerator.type))))
    own = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return own + [t for t in llm.spec.pod_template.spec.tolerations if t not in own]


def affinity(llm: LLMService, chosen: RevisionChoices = NO_CHOICES) -> dict[str, Any]:
    """The user's affinity, with the spec's products required in every term and preferred in their order.

    With a list, a planned product is the only acceptable one: on another the model or its maxModelLen may not fit.
    Without a list, the planned one is preferred, and products on which the model does not fit are excluded: nodes
    without the label, or with another one, are acceptable.
    """
    given, listed = _affinity_among_pods(llm), llm.spec.accelerator.products
    if llm.spec.accelerator.type not in _PRODUCT_LABELS:
        return given
    if listed:
        acceptable = listed if chosen.gpu is None else (chosen.gpu,)
        required, preferred = [[each] for each in _expressions(llm, "In", acceptable)], _in_order(llm, acceptable)
    else:
        excluded = _expressions(llm, "NotIn", chosen.excluded_gpus or ())
        required = [excluded] if excluded else []
        preferred = [] if chosen.gpu is None else [_preference(100, llm, chosen.gpu)]
    if chosen.excluded_architectures:
        apart = {"key": ARCHITECTURE, "operator": "NotIn", "values": list(chosen.excluded_architectures)}
        required = [[*each, apart] for each in required or [[]]]
    return given | _node_affinity(given.get("nodeAffinity") or {}, required, preferred)


def spread_constraints(llm: LLMService) -> list[dict[str, Any]]:
    return [_with_selector(llm, constraint) for constraint in llm.spec.pod_template.spec.topology_spread_constraints]


def _affinity_among_pods(llm: LLMService) -> dict[str, Any]:
    """The user's affinity, with a selector in each rule about pods."""
    found = dict(llm.spec.pod_template.spec.affinity)
    for kind in {"podAffinity", "podAntiAffinity"} & found.keys():
        rules = dict(found[kind])
        if terms := rules.get(_REQUIRED):
            rules[_REQUIRED] = [_with_selector(llm, term) for term in terms]
        if weighted := rules.get(_PREFERRED):
            rules[_PREFERRED] = [
                each | {"podAffinityTerm": _with_selector(llm, each["podAffinityTerm"])} for each in weighted
            ]
        found[kind] = rules
    if (label := llm.spec.parallelism.topology_key) is not None:
        together = {
            "topologyKey": label,
            "labelSelector": {"matchLabels": selector(llm)},
            "matchLabelKeys": [GROUP_INDEX_LABEL],
        }
        rules = found.get("podAffinity") or {}
        found["podAffinity"] = {**rules, _REQUIRED: [*rules.get(_REQUIRED, ()), together]}
    return found


def domain_label(pod_spec: Mapping[str, Any]) -> str | None:
    """The node label whose value is to be the same for all pods of a replica; None where they may be anywhere."""
    rules = (pod_spec.get("affinity") or {}).get("podAffinity") or {}
    together = (each for each in rules.get(_REQUIRED) or () if GROUP_INDEX_LABEL in (each.get("matchLabelKeys") or ()))
    return next((each["topologyKey"] for each in together), None)


def _with_selector(llm: LLMService, rule: dict[str, Any]) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": selector(llm)}, **rule}


def where_pods_go(llm: LLMService, template: Manifest) -> str:
    """Which labels keep pods of a template from nodes, what requires them, and the remedy.

    Empty if none does. The template may be of an earlier release, which required the chosen product.
    """
    label = _PRODUCT_LABELS.get(llm.spec.accelerator.type)
    only, excluded = (_values(template, label, operator) for operator in ("In", "NotIn"))
    given, asked, said = llm.spec.pod_template.spec, [], []
    if given.node_selector:
        pairs = ", ".join(f"{key}={value}" for key, value in sorted(given.node_selector.items()))
        asked.append(f"spec.podTemplate.spec.nodeSelector ({pairs})")
    if given.affinity:
        asked.append("spec.podTemplate.spec.affinity")
    if given.topology_spread_constraints:
        asked.append("spec.podTemplate.spec.topologySpreadConstraints")
    if only and llm.spec.accelerator.products:
        asked.append(f"spec.accelerator.products ({', '.join(only)})")
    if asked:
        said.append(
            f"The pods go only to nodes that match {' and '.join(asked)}: correct that, or add or label a node."
        )
    if only and llm.spec.accelerator.products:
        said.append(
            f"Where nodes have no label {label}, remove spec.accelerator.products and set spec.accelerator.memory."
        )
    if only and not llm.spec.accelerator.products:
        said.append(
            f"An earlier release bound the pods to {', '.join(only)}, which it chose itself: set the annotation "
            f"{UPDATE_REQUESTED_ANNOTATION} to a new value, and they also go to other GPUs that are large enough."
        )
    if excluded:
        said.append(
            f"The model does not fit on {', '.join(excluded)}, which the operator excludes: add a node with another "
            "GPU."
        )
    if others := _values(template, ARCHITECTURE, "NotIn"):
        said.append(f"Nodes of {', '.join(others)} are excluded: the images are built for {IMAGES}.")
    return " ".join(said)


def _values(template: Manifest, label: str | None, operator: str) -> list[str]:
    node = (template["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    parts = [part for term in terms for part in term.get("matchExpressions") or ()]
    mine = [part for part in parts if part.get("key") == label and part.get("operator") == operator]
    return list(dict.fromkeys(value for part in mine for value in part.get("values") or ()))


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _node_affinity(
    given: dict[str, Any], required: list[list[dict[str, Any]]], preferred: list[dict[str, Any]]
) -> dict[str, Any]:
    """A nodeAffinity with one of the lists of expressions required, and further preferences; empty without any."""
    node = dict(given)
    if required:
        # Terms are ORed, so each is combined with each list.
        terms = (given.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        node[_REQUIRED] = {
            "nodeSelectorTerms": [
                term | {"matchExpressions": [*(term.get("matchExpressions") or []), *each]}
                for term in terms
                for each in required
            ]
        }
    if preferred:
        node[_PREFERRED] = [*(given.get(_PREFERRED) or []), *preferred]
    return {"nodeAffinity": node} if required or preferred else {}


def _label(llm: LLMService, product: str) -> str:
    """The node label for this product: MIG slices with a resource of their own have another label than the GPU."""
    own = slice_label(accelerator_resource(llm) or "") if "-MIG-" in product else None
    return own or _PRODUCT_LABELS[llm.spec.accelerator.type]


def _expressions(llm: LLMService, operator: str, products: Iterable[str]) -> list[dict[str, Any]]:
    by_label: dict[str, list[str]] = {}
    for product in products:
        by_label.setdefault(_label(llm, product), []).append(product)
    return [{"key": label, "operator": operator, "values": values} for label, values in by_label.items()]


def _in_order(llm: LLMService, products: Sequence[str]) -> list[dict[str, Any]]:
    """Preferences with weights that decrease along the list; none for the last product."""
    step = 100 // max(1, len(products) - 1)
    return [
        _preference(100 - index * step if index * step < 100 else 1, llm, product)
        for index, product in enumerate(products[:-1])
    ]


def _preference(weight: int, llm: LLMService, product: str) -> dict[str, Any]:
    return {"weight": weight, "preference": {"matchExpressions": _expressions(llm, "In", [product])}}
