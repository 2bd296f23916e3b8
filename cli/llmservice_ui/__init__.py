"""The read-only web page of LLMServices."""
