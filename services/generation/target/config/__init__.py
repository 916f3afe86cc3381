"""What a model's configuration says, read from config.json and from GGUF."""
