"""`llmservice rollback`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "return a service to a recorded revision, or undo that"
GROUP = "change what runs"
