"""`llmservice bench compare`: result files side by side."""
