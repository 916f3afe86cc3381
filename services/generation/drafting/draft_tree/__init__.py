"""Draft trees: candidates, expanded by best cumulative probability, cut to the nodes that pay."""
