"""Draft trees: candidates, expanded by best cumulative probability, cut to what pays."""
