"""Sampling of a token from a row of logits, by programs that give the same bits on every CPU."""
