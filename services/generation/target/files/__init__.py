"""The formats of weight files."""
