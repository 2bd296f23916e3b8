"""`llmservice update`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "roll out what waits for a service's next rollout"
GROUP = "change what runs"
