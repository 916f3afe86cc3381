"""Training data of a head: prompts, the target's answers, its streams while it answered."""
