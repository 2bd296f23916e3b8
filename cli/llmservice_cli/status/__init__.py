"""`llmservice status`: one screen for whoever is on call."""
