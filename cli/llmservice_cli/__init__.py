"""The command line for LLMServices: `llmservice`, and as a plugin `kubectl llmservice`."""
