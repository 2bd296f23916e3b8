"""`llmservice rollback`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "return a service to a recorded revision, or undo that"
