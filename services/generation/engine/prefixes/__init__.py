"""Sharing between sequences that begin alike."""
