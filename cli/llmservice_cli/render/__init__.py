"""`llmservice render`: what the operator would make of a manifest, without a cluster."""

SUMMARY = "the objects that the operator would make of a manifest, without a cluster"
GROUP = "before it runs"
