"""How fast, how cheaply and how safely models are fetched, beside the tools that people use: `make bench-fetch`."""
