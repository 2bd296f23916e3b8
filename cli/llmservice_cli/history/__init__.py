"""`llmservice history`: the revisions of a service that are recorded."""
