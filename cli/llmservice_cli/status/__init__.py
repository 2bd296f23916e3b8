"""`llmservice status`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "show conditions, remedies, start, pods and live figures of a service"
GROUP = "while it runs"
