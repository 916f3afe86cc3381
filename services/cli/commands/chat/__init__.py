"""`kolm chat`."""
