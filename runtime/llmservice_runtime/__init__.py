"""Runs next to vLLM in its container; shares the contract and the flag table with the operator."""
