"""Paths of vLLM's server, over all known versions."""

HEALTH = frozenset({"/health", "/ping"})
STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate")
"""Answer with server-sent events if the body has `stream: true`."""
MULTIPART = ("/v1/audio/transcriptions", "/v1/audio/translations")
MODEL_POSTS = (
    *STREAMING,
    *MULTIPART,
    *("/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/chat/completions/derender"),
    *("/v1/completions/render", "/v1/completions/derender", "/v1/responses/render", "/v1/messages/render"),
    *("/v1/messages/count_tokens", "/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring", "/v1/systemone"),
    *("/cohere/v2/chat", "/cohere/v2/chat/render", "/tokenize", "/detokenize", "/invocations", "/v1/decisions"),
)
"""POSTs that use the model; they manage nothing and need no running pod."""
MODEL_WEBSOCKET = "/v1/realtime"
ADAPTER_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters")
DEV_PATHS = (
    *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/server_info"),
    *("/pause", "/resume", "/is_paused", "/abort_requests", "/init_weight_transfer_engine"),
    *("/shutdown_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update", "/update_weights"),
    *("/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size"),
)
"""Added by VLLM_SERVER_DEV_MODE=1 (tests/unit/runtime/test_closed_paths.py reads vLLM's sources)."""
ADMIN_PATHS = ("/start_profile", "/stop_profile", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance")
