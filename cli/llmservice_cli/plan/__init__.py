"""`llmservice plan`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "say before anything runs whether it fits: memory, longest request, concurrency, remedies"
