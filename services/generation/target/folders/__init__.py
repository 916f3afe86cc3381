"""A model's folder: where it lies, and its identity."""
