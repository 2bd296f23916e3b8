"""`llmservice ui`: its line in `llmservice --help`; its options are in arguments.py."""

SUMMARY = "open the web page of the fleet in a browser, signed in as you"
GROUP = "while it runs"
