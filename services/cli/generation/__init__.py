"""Commands that ask the generation service."""
