"""`llmservice plan`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "say before anything runs whether it fits: memory, longest request, concurrency, remedies"
GROUP = "before it runs"
