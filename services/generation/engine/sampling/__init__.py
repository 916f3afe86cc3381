"""Sampling: a token from a row of logits, by programs of our own that give the same bits on every CPU."""
