"""Receipts joined with their verdicts, as a table for other people's tools."""
