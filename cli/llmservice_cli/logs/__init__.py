"""`llmservice logs`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "the log of a service's pods: the supervisor's and vLLM's lines, told apart"
GROUP = "while it runs"
