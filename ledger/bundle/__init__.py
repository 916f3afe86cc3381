"""Bundles: parts of the log that can be verified offline."""
