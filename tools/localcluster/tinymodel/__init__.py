"""A tiny chat model that says true sentences about this project, so that an answer can be checked."""
