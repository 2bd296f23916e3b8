"""`llmservice probe`: its line in `llmservice --help`; the command itself is command.py."""

SUMMARY = "send constant load and account for every lost request, for example during a rollout"
