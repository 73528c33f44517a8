"""A cluster from a file, served as an API server would, and the demo that plays on it."""
