"""Draft heads: lists, training, how well they draft."""
