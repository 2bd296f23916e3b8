"""`llmservice bench`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "measure one load with static, dynamic and continuous batching, side by side"
GROUP = "measure"
