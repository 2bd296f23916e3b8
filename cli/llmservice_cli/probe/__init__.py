"""`llmservice probe`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "send constant load and account for every lost request, for example during a rollout"
GROUP = "measure"
