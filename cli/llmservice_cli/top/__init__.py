"""`llmservice top`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "show tokens/s, requests, cache use and latencies of services, live"
GROUP = "while it runs"
