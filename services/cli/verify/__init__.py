"""Offline verification of files."""
