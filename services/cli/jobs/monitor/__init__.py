"""Follows a log: where it is read from, what is remembered of it, whom findings are told to."""
