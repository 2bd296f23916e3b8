"""Runs beside vLLM in its container; shares its contract and its knowledge of flags with the operator."""
