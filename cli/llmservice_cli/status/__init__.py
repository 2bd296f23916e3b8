"""`llmservice status`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "show conditions, remedies, start, pods and live figures of a service"
