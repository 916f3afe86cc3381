"""Entries of the log in other formats: SCITT signed statements with COSE Receipts."""
