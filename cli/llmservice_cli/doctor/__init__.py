"""`llmservice doctor`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "check a cluster before and after installing; each finding has its remedy"
GROUP = "the cluster and this program"
