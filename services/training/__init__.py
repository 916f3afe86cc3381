"""Training of EAGLE-3 heads: the target answers prompts, and a head learns to foresee its answers."""
