"""`llmservice completion`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "print what completes commands, options and names of services in a shell"
GROUP = "the cluster and this program"
