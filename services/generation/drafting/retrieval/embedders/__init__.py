"""Embedders of passages and requests: the base itself, at its input or after some layers, or a sentence model."""
