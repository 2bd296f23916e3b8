"""`llmservice bench`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "measure one load with static, dynamic and continuous batching, side by side"
