"""Which GPU for which model: the planner's answers for known models, as pages."""
