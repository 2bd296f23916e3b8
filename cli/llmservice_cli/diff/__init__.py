"""`llmservice diff`: what the operator would change in a cluster, and what would restart."""
