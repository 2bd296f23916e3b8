"""`llmservice rollback`: back to a recorded revision, and forth again."""
