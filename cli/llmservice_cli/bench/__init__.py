"""`llmservice bench`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "measure a server: three disciplines, sweeps of the load, goodput; compare results"
GROUP = "measure"
