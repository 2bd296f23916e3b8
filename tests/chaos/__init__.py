"""A seeded run of everything that may happen to the operator at once, and what must be true after it."""
