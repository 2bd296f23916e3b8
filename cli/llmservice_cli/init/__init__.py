"""`llmservice init`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "print a manifest to begin with, and the Role that holding requests with an API key needs"
GROUP = "before it runs"
