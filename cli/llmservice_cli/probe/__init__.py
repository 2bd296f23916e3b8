"""`llmservice probe`: constant load, and an account of every request that was not answered whole."""
