"""Commands that ask the ledger."""
