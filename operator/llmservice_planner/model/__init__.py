"""What a model is made of, and how its config.json, its tensors' headers or stated facts say so."""
