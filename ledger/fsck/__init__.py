"""Checking a ledger's database against itself, its guard and what was signed."""
