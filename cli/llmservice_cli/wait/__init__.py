"""`llmservice wait`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "wait until a service is Ready, or cannot become it"
GROUP = "while it runs"
