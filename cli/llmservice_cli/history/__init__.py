"""`llmservice history`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "list the recorded revisions of a service, and what changed with each"
