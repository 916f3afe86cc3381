"""Receipts and promises, and results of their verification."""
