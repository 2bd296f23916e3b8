"""`llmservice render`: what the operator would make of a manifest, without a cluster."""
