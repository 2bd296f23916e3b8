"""`llmservice update`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "roll out what waits for a service's next rollout"
