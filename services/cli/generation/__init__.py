"""Commands that call the generation service."""
