"""Receipts: signed, stored on disk, delivered to the ledger."""
