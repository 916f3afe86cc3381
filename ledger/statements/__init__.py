"""Entries of the log in the formats of others: SCITT signed statements with COSE Receipts."""
