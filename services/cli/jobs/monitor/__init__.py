"""Follows a log: its source, the memory of it, and the receivers of findings."""
