"""Output to stdout and stderr."""
