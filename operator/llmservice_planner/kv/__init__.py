"""How vLLM lays out the KV cache: specs of layers, groups of them, blocks."""
