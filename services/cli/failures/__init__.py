"""Errors as exit codes and as lines for people."""
