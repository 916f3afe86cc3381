"""What a head learns from: prompts, the answers of the target, its streams while it answered."""
