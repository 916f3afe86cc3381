"""Memory of a server under attack by hostile callers."""
