"""Envoy's configuration: the one port of a router's pod that clients reach. Pure.

vllm-router listens on the loopback, because its paths to add and remove workers (POST /workers) are open to every
client of its port, with --api-key too. Only prompts go there, and only where a replica is chosen by them: vllm-router
writes their JSON anew, and Envoy passes on what it gets. All other paths of vLLM's API go from Envoy to the less busy
of two replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmservice_runtime.contract import KEEP_ALIVE_SECONDS

PROMPTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Paths whose prompt decides about the replica."""
ROUTER, REPLICAS, SESSIONS, WORKERS = "router", "replicas", "sessions", "workers"
"""Envoy's names for vllm-router, for all replicas (the less busy one, and the one of a session), and for the one that
vllm-router has chosen."""
CACHE_AWARE, CONSISTENT_HASH, POWER_OF_TWO = "cache_aware", "consistent_hash", "power_of_two"
OF_POLICY = {CACHE_AWARE: ROUTER, CONSISTENT_HASH: SESSIONS, POWER_OF_TWO: REPLICAS}
"""Where prompts go."""
SESSION_HEADER = "x-session-id"
"""Of vllm-router, too."""
ENDPOINTS_FILE, ROUTER_FILE, ADMIN_SOCKET = "replicas.json", "router.json", "admin.sock"
CLOSING_FILE = "closing"
"""With 1 in it, clients' connections end: with the next answer, or at once where they have no request. With 0 they
stay."""

_TYPE = "type.googleapis.com/envoy."
_UNLIMITED = 1_000_000
"""Connections and requests. Envoy's default is 1024 of each, and what is more gets 503."""
_CLIENTS = 50_000
"""Connections of clients: each is a file descriptor and some kilobytes."""
_BODY_BYTES = 33 << 20
_HEAD_SECONDS = 30
"""Until a request's head has to be complete."""
_CONNECT_SECONDS = 5
_RETRIES = 3


def bootstrap(
    *, policy: str, host: str, port: int, workers_port: int, folder: str, heap_bytes: int | None = None
) -> dict[str, Any]:
    """The whole configuration; `folder` has the files of endpoints and gets the socket of Envoy's administration.
    `workers_port`: of the proxy by which vllm-router reaches its workers. `heap_bytes`: of Envoy's memory, at which it
    takes no further request (503) until there is less."""
    return {
        "node": {"id": "router", "cluster": "router"},
        "admin": {"address": {"pipe": {"path": f"{folder}/{ADMIN_SOCKET}", "mode": 0o600}}},
        "overload_manager": _overload(f"{folder}/{CLOSING_FILE}", heap_bytes),
        "static_resources": {
            "listeners": [
                {
                    "name": "clients",
                    # What is longer is not sent again to another replica.
                    "per_connection_buffer_limit_bytes": _BODY_BYTES,
                    "address": _address(host, port) if host != "::" else _every_address(port),
                    "filter_chains": [{"filters": [_http_connections(OF_POLICY[policy])]}],
                },
                *([_workers_proxy(workers_port)] if policy == CACHE_AWARE else []),
            ],
            "clusters": [
                *([_by_authority(WORKERS)] if policy == CACHE_AWARE else []),
                _of_file(ROUTER, "LEAST_REQUEST", f"{folder}/{ROUTER_FILE}", ROUTER),
                _of_file(REPLICAS, "LEAST_REQUEST", f"{folder}/{ENDPOINTS_FILE}"),  # of two that chance names
                _of_file(SESSIONS, "MAGLEV", f"{folder}/{ENDPOINTS_FILE}"),
            ],
        },
    }


def _workers_proxy(port: int) -> dict[str, Any]:
    """Between vllm-router and its workers. vLLM answers /render with 403 since 0.30 (--enable-scale-out), at which
    vllm-router 0.1.17 gives up and routes by chance; at 404 it asks /tokenize."""
    absent = {"match": {"safe_regex": {"regex": ".*/render"}}, "direct_response": {"status": 404}}
    route = {"cluster": WORKERS, "timeout": "0s", "idle_timeout": "0s"}
    return {
        "name": WORKERS,
        "address": _address("127.0.0.1", port),
        "filter_chains": [
            {
                "filters": [
                    _connection_manager(
                        stat_prefix=WORKERS,
                        common_http_protocol_options={"headers_with_underscores_action": "ALLOW"},
                        route_config=_routes([absent, {"match": {"prefix": "/"}, "route": route}]),
                    )
                ]
            }
        ],
    }


def _by_authority(name: str) -> dict[str, Any]:
    """Leads to the address that a request names."""
    header = {"use_http_header": True, "http_header_name": ":authority"}
    return _cluster(name, "ORIGINAL_DST", lb_policy="CLUSTER_PROVIDED", original_dst_lb_config=header)


def _overload(closing: str, heap_bytes: int | None) -> dict[str, Any]:
    """Limits, and CLOSING_FILE as a resource that is used up."""
    heap = {"fixed_heap": ("fixed_heap.v3.FixedHeapConfig", {"max_heap_size_bytes": heap_bytes})}
    monitors: dict[str, tuple[str, dict[str, Any]]] = {
        "global_downstream_max_connections": (
            "downstream_connections.v3.DownstreamConnectionsConfig",
            {"max_active_downstream_connections": _CLIENTS},
        ),
        "injected_resource": ("injected_resource.v3.InjectedResourceConfig", {"filename": closing}),
        **(heap if heap_bytes is not None else {}),
    }
    soon = {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": "0.5s"}
    scaled = {"@type": f"{_TYPE}config.overload.v3.ScaleTimersOverloadActionConfig", "timer_scale_factors": [soon]}
    actions = [
        _action("disable_http_keepalive", "injected_resource", {"threshold": {"value": 1.0}}),
        _action(
            "reduce_timeouts",
            "injected_resource",
            {"scaled": {"scaling_threshold": 0.5, "saturation_threshold": 1.0}},
            typed_config=scaled,
        ),
    ]
    if heap_bytes is not None:
        actions.append(_action("stop_accepting_requests", "fixed_heap", {"threshold": {"value": 1.0}}))
    kinds = f"{_TYPE}extensions.resource_monitors."
    return {
        "refresh_interval": "0.1s",
        "resource_monitors": [
            {"name": f"{_MONITOR}{name}", "typed_config": {"@type": f"{kinds}{kind}", **fields}}
            for name, (kind, fields) in monitors.items()
        ],
        "actions": actions,
    }


_MONITOR = "envoy.resource_monitors."


def _action(name: str, monitor: str, trigger: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": f"envoy.overload_actions.{name}", "triggers": [{"name": f"{_MONITOR}{monitor}", **trigger}], **more}


def _of_file(name: str, policy: str, path: str, service: str = REPLICAS) -> dict[str, Any]:
    """The servers of a file, of which one is chosen by this policy."""
    file = {"path": path, "watched_directory": {"path": path.rpartition("/")[0]}}
    source = {"path_config_source": file, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    return _cluster(
        name,
        "EDS",
        eds_cluster_config={"service_name": service, "eds_config": source},
        lb_policy=policy,
        common_lb_config={"healthy_panic_threshold": {"value": 0}},
    )


def endpoints(servers: Sequence[tuple[str, int]], version: int, name: str = REPLICAS) -> dict[str, Any]:
    """The content of ENDPOINTS_FILE, or with ROUTER of ROUTER_FILE, which Envoy reads anew when they are replaced."""
    resource = {"@type": f"{_TYPE}config.endpoint.v3.ClusterLoadAssignment"} | _assignment(name, servers)
    return {"version_info": str(version), "resources": [resource]}


def _assignment(name: str, addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    found = [{"endpoint": {"address": _address(host, port)}} for host, port in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": found}]}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _every_address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "::", "port_value": port, "ipv4_compat": True}}


def _cluster(name: str, kind: str, **more: Any) -> dict[str, Any]:
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {
        "name": name,
        "type": kind,
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "circuit_breakers": {"thresholds": [dict.fromkeys(limits, _UNLIMITED)]},
        **more,
    }


def _http_connections(prompts: str) -> dict[str, Any]:
    """Nothing ends a request but its client or its replica: a long prompt may take minutes to its first token."""
    return _connection_manager(
        stat_prefix="clients",
        request_headers_timeout=f"{_HEAD_SECONDS}s",
        # No client is internal: its x-envoy-* headers, which would change timeouts and retries, are removed.
        use_remote_address=True,
        internal_address_config={"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        common_http_protocol_options={
            "headers_with_underscores_action": "ALLOW",
            "idle_timeout": f"{KEEP_ALIVE_SECONDS}s",
        },
        # As vLLM does: nginx passes requests on so where its proxy_http_version is not set.
        http_protocol_options={"accept_http_10": True, "default_host_for_http_10": "replicas"},
        upgrade_configs=[{"upgrade_type": "websocket"}],
        route_config=_routes([*(_prompts(path, prompts) for path in PROMPTS), _others(prompts)]),
    )


def _routes(routes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    headers = ["x-envoy-external-address"]
    hosts = [{"name": "all", "domains": ["*"], "routes": list(routes), "request_headers_to_remove": headers}]
    return {"name": "paths", "virtual_hosts": hosts}


def _connection_manager(**fields: Any) -> dict[str, Any]:
    """vLLM sees what a client sends through a Service."""
    name = "envoy.filters.http.router"
    router = {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router", "suppress_envoy_headers": True}
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stream_idle_timeout": "0s",
            "request_timeout": "0s",
            "server_header_transformation": "PASS_THROUGH",
            "generate_request_id": False,
            "skip_xff_append": True,
            "http_filters": [{"name": name, "typed_config": router}],
            **fields,
        },
    }


def _prompts(path: str, cluster: str) -> dict[str, Any]:
    match = {"path": path, "headers": [{"name": ":method", "string_match": {"exact": "POST"}}]}
    return {"match": match, "route": _route(cluster)}


def _others(prompts: str) -> dict[str, Any]:
    """With sessions all paths: what a replica stores, such as a response in the background, is asked for there."""
    return {"match": {"prefix": "/"}, "route": _route(SESSIONS if prompts == SESSIONS else REPLICAS)}


def _route(cluster: str) -> dict[str, Any]:
    by_session = {"hash_policy": [{"header": {"header_name": SESSION_HEADER}}]} if cluster == SESSIONS else {}
    return by_session | {
        "cluster": cluster,
        "timeout": "0s",
        "idle_timeout": "0s",
        # What no server has begun: a replica that ended, before its address is gone.
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": _RETRIES,
            "host_selection_retry_max_attempts": _RETRIES,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }
            ],
        },
    }
