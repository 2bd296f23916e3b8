"""What needs a machine with a GPU and torch, and neither a cluster nor vLLM."""
