"""Fits the planner's constants to measured start-ups, and says how far off it is for models that it never saw."""
