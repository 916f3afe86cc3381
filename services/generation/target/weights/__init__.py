"""Weights as they were published: safetensors and GGUF files, mapped from disk, nothing converted."""
