"""`llmservice history`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "list the recorded revisions of a service, and what changed with each"
GROUP = "while it runs"
