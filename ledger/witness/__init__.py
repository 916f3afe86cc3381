"""Witnesses: cosignatures, whom to ask for them, what a log has collected; timestamps by an authority."""
