"""Properties of vLLM that differ between versions; standard library only.

Copied into pods beside the supervisor (`llmservice_runtime.__main__`), without what extracts.
"""
