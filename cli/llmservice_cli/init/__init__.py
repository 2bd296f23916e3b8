"""`llmservice init`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "print a manifest to begin with, planned for what the cluster has; asks on a terminal"
GROUP = "before it runs"
