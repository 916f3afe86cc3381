"""Commands that call the ledger."""
