"""`llmservice chat`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "chat with a served model in the terminal"
GROUP = "while it runs"
