"""Paths that a holding listener answers itself."""

ACTIVATOR_PATH = "/llmservice.dev/activator"
"""GET: 200 with `{"uid": UID}` of the LLMService whose port this is. Never forwarded, and needs no API key: it shows
that a connection to the Service reaches an activator."""
