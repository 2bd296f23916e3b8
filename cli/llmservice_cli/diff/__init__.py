"""`llmservice diff`: what the operator would change in a cluster, and what would restart."""

SUMMARY = "what the operator would change in a cluster for a manifest, and what would restart"
GROUP = "before it runs"
