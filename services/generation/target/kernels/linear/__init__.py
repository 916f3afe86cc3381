"""Linear layers: few rows, many rows, every storage of weights."""
