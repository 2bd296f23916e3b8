"""`llmservice update`: what waits for the next rollout, now."""
