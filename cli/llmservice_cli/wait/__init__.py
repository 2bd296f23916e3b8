"""`llmservice wait`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "wait until a service is Ready, or cannot become it"
