"""Verification of a recorded output: along the record in passes of many rows, or token by token."""
