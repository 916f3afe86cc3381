"""Configurations of models, read from config.json and from GGUF."""
