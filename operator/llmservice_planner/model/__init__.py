"""The architecture of a model, from config.json, headers of its tensors, or stated facts."""
