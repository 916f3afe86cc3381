"""Metrics and spans that processes export."""
