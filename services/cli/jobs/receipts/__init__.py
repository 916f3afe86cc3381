"""Receipts and promises: found, checked, saved, exported, replayed."""
