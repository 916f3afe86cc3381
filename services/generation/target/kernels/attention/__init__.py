"""Attention over the paged cache: rotation, scores, values, and moving what is cached."""
