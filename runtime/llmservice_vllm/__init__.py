"""All that is true of a version of vLLM and may be other in the next one; standard library only.

It is copied into pods beside the supervisor (`llmservice_runtime.install`), without `extract`.
"""
