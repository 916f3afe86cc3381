"""Text: prompts to token ids, token ids to text that is released when it is safe."""
