"""vLLM's layout of the KV cache: specs of layers, groups of layers, blocks."""
