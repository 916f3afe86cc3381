"""Receipts: signed, kept on disk, delivered to the ledger."""
