"""`llmservice plan`: does it fit, before anything runs."""
