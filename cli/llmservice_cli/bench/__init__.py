"""`llmservice bench`: one load, several ways for a client to send it, the same server."""
