"""`llmservice explain`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "explain a reason, a condition or a field: meaning, remedy, flag, default"
GROUP = "the cluster and this program"
