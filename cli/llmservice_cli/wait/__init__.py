"""`llmservice wait`: until a service is Ready, or cannot become it."""
