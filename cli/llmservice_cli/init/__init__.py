"""`llmservice init`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "print a manifest to begin with, and the Role that holding requests with an API key needs"
