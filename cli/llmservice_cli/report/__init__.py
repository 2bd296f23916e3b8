"""`llmservice report`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "bundle what a bug report needs: objects, Events, logs, metrics; secrets are taken out"
GROUP = "the cluster and this program"
