"""A small model of our own, for tests and trials: corpus builders, training recipe, weights, prompts."""
