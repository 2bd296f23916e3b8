"""A stand-in for vLLM's server process: what it says and does, in tens of milliseconds and megabytes.

Its answers, log lines, exit codes and ways to end are recorded from vLLM 0.32.0 (tests/e2e/test_stand_in.py runs both
through the same cases). Standard library and llmservice_runtime only: its image is Debian's Python and this folder.
"""
